"""PURE: finds Python's account of an exception in what a worker wrote to stderr.

Several tracebacks may stand there: of handled exceptions that were logged, of threads, of the
interpreter's own clean-up. The one that ended the process is the last that is complete and is none
of a thread or of the clean-up. A *chain* is such a traceback with those that led to it ("During
handling of the above exception, ...").

A traceback, as lines: a header; lines that begin with two blanks (frames, source, markers); the
exception, whose message may go on for lines. An exception group has a margin of `|` and `+`
instead. A SyntaxError in the script itself has no header, and neither has a traceback whose
beginning was cut off: then the first line that names a file is the beginning.

A message may quote anything, even the traceback of another process. What nobody caught begins at
the top of a program; so a traceback that does not, right behind one that does, is a part of that
one's message.
"""

from __future__ import annotations

import re

from phalanx.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PythonError", "find", "is_at_import", "without_rank"]

#: torch's excepthook puts this before every line once there is a process group.
_RANK = re.compile(r"^\[rank\d+\]: ?")
_HEADER = re.compile(r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):$")
#: (faulthandler's lines are like it, without the comma before "in".)
_FILE = re.compile(r'^  File "[^"]*", line \d+(?:, in .+)?$')
_FRAME = re.compile(r'^[ |]*File "(?P<file>[^"]*)", line \d+, in (?P<function>.+)$')
_MARGIN = re.compile(r"^ +[|+]")
_IN_GROUP = re.compile(r"^  \| (?P<line>\S.*)$")
#: The line of the exception itself: a dotted name, and perhaps a message.
_EXCEPTION = re.compile(r"^(?P<type>[^\W\d][\w.<>]*)(?::(?: (?P<message>.*))?)?$")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
#: What stands right before a traceback that did not end the process.
_BACKGROUND = re.compile(
    r"^(?:Exception ignored |--- Logging error ---|Task exception was never retrieved|future: <"
    r"|Exception in (?:thread|callback) |handle: <|Process \S+:$)"
)
#: Of these a worker may still have ended: a thread that takes the process with it.
_THREAD = re.compile(r"^(?:Exception in thread |Process \S+:$)")
#: Lines that go on after an exception's message, and are none of it.
_NOISE = re.compile(
    r"^(?:Process \S+:$|Task exception was never retrieved|future: <|handle: <"
    r"|Exception in callback "
    r"|\[?[WEIF]\d{4} |\[\w\d{3,4} |\S+:\d+: \w*Warning: |Exception ignored |--- Logging error"
    r"|Exception in thread |Traceback |  \+ Exception Group Traceback|terminate called )"
)
#: Frames that belong to whoever loads the script.
_LOADERS = ("<frozen ", "runpy.py", "run_path.py")
#: So many lines after the exception's own a message may begin to quote another traceback.
_QUOTES_WITHIN = 6
_LOST = ("Traceback (most recent call last):", "  ... (its beginning is lost)")


class PythonError(Record):
    """An exception that nobody caught."""

    #: "ValueError: bad batch".
    headline: str
    #: From the first header to the end of the message.
    lines: tuple[str, ...] = ()
    #: Which of the lines is the exception's own; its message may go on behind it.
    said_at: int = 0
    #: How many lines that are not empty follow the exception's own.
    behind: int = 0
    #: It ended a thread or a child process; the worker itself has another end.
    in_thread: bool = False

    @property
    def type_name(self) -> str:
        """ "DistNetworkError", without its module."""
        return self.headline.partition(":")[0].rpartition(".")[2]


def without_rank(lines: Sequence[str]) -> list[str]:
    """The lines without torch's "[rank0]: "."""
    return [_RANK.sub("", line) for line in lines]


def find(lines: Sequence[str]) -> PythonError | None:
    """The exception that most likely ended the process that wrote these clean lines."""
    best: PythonError | None = None
    best_at = at = 0
    while at < len(lines):
        if not _begins(lines[at]):
            at += 1
            continue
        chain = _chain(lines, at)
        if chain is None:
            at = _end_of_frames(lines, at + 1)
            continue
        headline, said_at, end = chain
        before = _before(lines, at)
        background = _BACKGROUND.match(before) is not None
        in_thread = _THREAD.match(before) is not None
        if not background or (in_thread and (best is None or best.in_thread)):
            lost = _LOST if ", in " in lines[at] else ()
            own = said_at - at + len(lost)
            best = PythonError(headline, (*lost, *lines[at:end]), own, 0, in_thread)
            best_at = said_at
        at = end
    if best is None:
        return None
    return replace(best, behind=sum(1 for line in lines[best_at + 1 :] if line))


def is_at_import(lines: Sequence[str], frames: int = 1) -> bool:
    """Nothing but modules' top levels was being run, as when a script imports.

    `frames`: so many of them at least are there (the script's own SyntaxError comes without).
    """
    if any(line.startswith(("... ", "  ... ")) for line in lines):
        return False  # not all frames are there
    found = [frame for frame in map(_FRAME.match, lines) if frame]
    own = [frame["function"] for frame in found if not _is_loader(frame["file"])]
    return len(own) >= frames and all(function == "<module>" for function in own)


def _is_loader(file: str) -> bool:
    return file.startswith(_LOADERS[0]) or file.endswith(_LOADERS[1:])


def _begins(line: str) -> bool:
    return _HEADER.match(line) is not None or _FILE.match(line) is not None


def _before(lines: Sequence[str], at: int) -> str:
    """The last line before this one that is not empty."""
    return next((lines[i] for i in range(at - 1, max(-1, at - 3), -1) if lines[i]), "")


def _chain(lines: Sequence[str], start: int) -> tuple[str, int, int] | None:
    """Of the last exception of the chain that begins here: headline, its index, the chain's end."""
    found = _one(lines, start)
    while found is not None:
        following = _chained(lines, found[2])
        more = _one(lines, following) if following is not None else None
        if more is None:
            return found
        found = more
    return None


def _one(lines: Sequence[str], start: int) -> tuple[str, int, int] | None:
    """One traceback: headline, the index of its line, and the end; None: it is cut off."""
    if lines[start].startswith("  +"):
        return _group(lines, start)
    at = _end_of_frames(lines, start + 1)
    if at >= len(lines):
        return None
    exception = _EXCEPTION.match(lines[at])
    if exception is None:
        return None
    end = _end_of_message(lines, at, _is_from_top(lines, start) is True)
    headline = lines[at]
    if not exception["message"] and headline.endswith(":"):
        headline = f"{headline} {next(filter(None, lines[at + 1 : end]), '').strip()}".rstrip()
    return headline.removesuffix(":"), at, end


def _end_of_frames(lines: Sequence[str], start: int) -> int:
    at = start
    while at < len(lines) and lines[at].startswith(("  ", "... ")) and lines[at][:4] != "  + ":
        at += 1
    return at


def _group(lines: Sequence[str], start: int) -> tuple[str, int, int] | None:
    end = start + 1
    while end < len(lines) and _MARGIN.match(lines[end]):
        end += 1
    for line in lines[start + 1 : end]:
        inside = _IN_GROUP.match(line)
        if inside and _EXCEPTION.match(inside["line"]):
            return inside["line"], end - 1, end
    return None


def _end_of_message(lines: Sequence[str], said_at: int, from_top: bool) -> int:
    """Where the message of the exception in line `said_at` is over.

    `from_top`: its traceback begins at the top of a program.
    """
    at = said_at + 1
    quotes = False
    while at < len(lines):
        if _HEADER.match(lines[at]):
            if not (from_top and _is_quoted(lines, said_at, at, quotes)):
                break
            quotes = True
        elif _NOISE.match(lines[at]) or (lines[at] in _CHAINED and not (quotes and from_top)):
            break
        at += 1
    while at > said_at + 1 and not lines[at - 1]:
        at -= 1
    return at


def _is_quoted(lines: Sequence[str], said_at: int, at: int, quotes: bool) -> bool:
    """The traceback at `at` is part of the message of that from the top of a program.

    `quotes`: the message has a traceback in it already.
    """
    if quotes:
        return _is_from_top(lines, at) is False
    if at - said_at > _QUOTES_WITHIN:
        return False
    between = lines[said_at + 1 : at]
    last = next((line for line in reversed(between) if line), lines[said_at])
    return last.endswith(":") or (all(between) and _is_from_top(lines, at) is False)


def _is_from_top(lines: Sequence[str], start: int) -> bool | None:
    """The traceback that begins here has all frames of a program, from its first on.

    None: that cannot be told, because its beginning or its first frame is lost.
    """
    first = _FRAME.match(lines[start + 1]) if start + 1 < len(lines) else None
    if first is None or not _HEADER.match(lines[start]):
        return None
    return first["function"] == "<module>" or first["file"].startswith(_LOADERS[0])


def _chained(lines: Sequence[str], end: int) -> int | None:
    """The beginning of the traceback that one ending here has led to, if any has."""
    at = end
    while at < len(lines) and not lines[at]:
        at += 1
    if at >= len(lines) or lines[at] not in _CHAINED:
        return None
    next_at = at + 2 if at + 1 < len(lines) and not lines[at + 1] else at + 1
    return next_at if next_at < len(lines) and _begins(lines[next_at]) else None
