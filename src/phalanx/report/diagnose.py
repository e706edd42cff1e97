"""PURE: one worker's end and what it has left behind → how it died, in words.

Each way to die is one function, which returns a `Diagnosis` or None for "not this one"; the first
that knows is believed. What the worker recorded of an exception itself is believed before its
stderr is.
"""

from __future__ import annotations

import re

from phalanx.record import Record
from phalanx.report import native_error, python_error
from phalanx.report.causes import BY_WORD, hint_for_text
from phalanx.report.error_file import parse
from phalanx.report.evidence import MemoryCounters, WorkerEnd
from phalanx.report.foreign import clean, cut_middle, lines_of, text_of
from phalanx.report.quoted import real_headline
from phalanx.report.shorten import shorten
from phalanx.report.words import LIMITS, START_HINTS, describe, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.report.evidence import Evidence, Observed

__all__ = ["Diagnosis", "diagnose", "size_text", "told_exception"]

#: Of a traceback this many lines are kept; of other last words, these.
_TRACEBACK = 100
_LAST_WORDS = 10
#: With an exit code of its own, a worker did not die of what it had printed long before.
_BEHIND = 20
_MIB = 1024 * 1024

_MEANING = {
    "SIGABRT": "abort",
    "SIGALRM": "alarm clock",
    "SIGBUS": "bus error: memory that is not there",
    "SIGFPE": "arithmetic error",
    "SIGHUP": "hang-up",
    "SIGILL": "illegal instruction",
    "SIGINT": "interrupt",
    "SIGPIPE": "nobody reads what it writes",
    "SIGQUIT": "quit",
    "SIGSEGV": "segmentation fault",
    "SIGSYS": "a system call that is not allowed here",
    "SIGTERM": "termination",
    "SIGTRAP": "trap",
    "SIGUSR1": "user signal 1, for which it has no handler",
    "SIGUSR2": "user signal 2, for which it has no handler",
    "SIGXCPU": "CPU time limit",
    "SIGXFSZ": "file size limit",
}
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")

#: How one hears that a peer is gone. Not every one that says so has been the first to fail.
_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection was likely closed"
    r"|remote process exited or there was a network error|ncclRemoteError|Broken pipe"
    r"|Connection refused|The client socket has (?:failed|timed out)|failed to recv, got 0 bytes"
)
_PEER_TYPES = frozenset(
    "BrokenPipeError ConnectionResetError ConnectionRefusedError ConnectionAbortedError "
    "DistNetworkError DistBackendError DistStoreError".split()
)
_NO_MODULE = re.compile(
    r"^\S+: (?P<what>No module named .+|Error while finding module specification .+"
    r"|can't open file .+|can't find '__main__' module in .+)$"
)
_DEVICE_MEMORY = re.compile(r"(?:CUDA|HIP|XPU|MPS).{0,20}out of memory|OutOfMemoryError: ")


class Diagnosis(Record):
    """How one worker died, as far as it can be told."""

    end: WorkerEnd
    #: A word of `causes`.
    cause: str
    #: "ValueError: bad batch"; or what follows a name: "was killed by SIGSEGV (...)".
    headline: str
    #: Traceback, stack or last words, clean and bounded.
    details: tuple[str, ...] = ()
    #: `details` are Python's or C's own account of it, no mere last words.
    has_traceback: bool = False
    #: Which of the details is the exception's own line; None: there is none.
    said_at: int | None = None
    #: Of what is said, the headline is an exception's own line.
    is_exception: bool = False
    hint: str = ""
    can_heal: bool = True
    #: It says that a connection to another worker broke.
    blames_peer: bool = False


class _Told:
    """What a worker told of its end, read once."""

    def __init__(self, evidence: Evidence) -> None:
        self.lines = python_error.without_rank(lines_of(text_of(evidence.stderr_tail)))
        self.recorded = parse(evidence.error_file)
        self.printed = python_error.find(self.lines)

    @property
    def last_words(self) -> tuple[str, ...]:
        return tuple(self.lines[-_LAST_WORDS:])


def diagnose(observed: Observed, end: WorkerEnd) -> Diagnosis:
    """How this worker of that round died. Never raises for what workers leave behind."""
    status = end.failure.status
    if status.errno is not None:
        return _not_started(observed, end, status.errno)
    if end.killed_at_timeout:
        return _of(end, "timeout", "did not stop within the shutdown timeout, and was killed")
    told = _Told(end.evidence)
    if status.signal is not None:
        return _by_signal(end, told, signal_name(status.signal))
    return (
        _recorded(end, told)
        or _printed(end, told)
        or _usage(end, told)
        or _no_module(end, told)
        or _native(end, told)
        or _bare(end, told)
    )


def _of(end: WorkerEnd, word: str, headline: str, **more: object) -> Diagnosis:
    """A diagnosis with hint and prospects as the table of causes has them."""
    cause = BY_WORD[word]
    fields: dict[str, object] = {"hint": cause.hint, "can_heal": cause.can_heal, **more}
    return Diagnosis(end, word, headline, **fields)  # type: ignore[arg-type]


def _not_started(observed: Observed, end: WorkerEnd, number: int) -> Diagnosis:
    word = "limit" if number in LIMITS else "cannot-start"
    headline = f"{describe(end.failure.status)}: {clean(observed.target)}"
    return _of(end, word, headline, hint=START_HINTS.get(number, ""))


# Exceptions


def told_exception(end: WorkerEnd) -> Diagnosis | None:
    """The exception that it has told of, whatever it ended with then."""
    told = _Told(end.evidence)
    return _recorded(end, told) or _printed(end, told)


def _recorded(end: WorkerEnd, told: _Told) -> Diagnosis | None:
    """The worker has left an error file."""
    recorded = told.recorded
    if recorded is None:
        return None
    lines = recorded.stack or recorded.message
    if not recorded.stack and told.printed and told.printed.headline == recorded.headline:
        lines = told.printed.lines
    return _exception(end, recorded.headline, lines, _said_at(recorded.headline, lines))


def _said_at(headline: str, lines: Sequence[str]) -> int:
    """Which line is the exception's own; there its type may have a module before it."""
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].endswith(headline) and lines[at][:1] not in (" ", ""):
            return at
    found = python_error.find(lines)
    return len(lines) - 1 if found is None else lines.index(found.lines[found.said_at])


def _printed(end: WorkerEnd, told: _Told) -> Diagnosis | None:
    """Python has printed a traceback, as it does when nobody catches an exception."""
    error = told.printed
    if error is None or error.type_name in ("KeyboardInterrupt", "SystemExit"):
        return None
    long_ago = error.behind > _BEHIND
    if end.failure.status.code != 1 and long_ago:
        return None
    return _exception(end, error.headline, error.lines, error.said_at)


def _exception(end: WorkerEnd, said: str, lines: Sequence[str], said_at: int) -> Diagnosis:
    """`said`: the exception's own line, which is `lines[said_at]`."""
    headline = real_headline(said, lines[said_at + 1 :])
    details, said_in_details = shorten(tuple(lines), said_at, _TRACEBACK)
    kind = headline.partition(":")[0].rpartition(".")[2]
    word = _exception_cause(kind, headline, lines)
    return _of(
        end,
        word,
        headline,
        details=details,
        said_at=said_in_details,
        has_traceback=True,
        is_exception=True,
        hint=BY_WORD[word].hint or hint_for_text(headline),
        blames_peer=headline == said
        and (kind in _PEER_TYPES or _PEER.search(headline) is not None),
    )


def _exception_cause(kind: str, headline: str, lines: Sequence[str]) -> str:
    if kind in ("SyntaxError", "IndentationError", "TabError"):
        return "syntax-error" if python_error.is_at_import(lines, frames=0) else "exception"
    if kind in ("ModuleNotFoundError", "ImportError"):
        return "import-error" if python_error.is_at_import(lines) else "exception"
    if _DEVICE_MEMORY.search(headline):
        return "device-memory"
    return "memory" if kind == "MemoryError" else "exception"


# Exit codes


def _usage(end: WorkerEnd, told: _Told) -> Diagnosis | None:
    """argparse's words: "usage: ...", then "PROGRAM: error: ...", then exit code 2."""
    if end.failure.status.code != 2:
        return None
    error = next((line for line in reversed(told.last_words) if ": error: " in line), "")
    starts = [at for at, line in enumerate(told.lines) if line.startswith("usage: ")]
    if not error or not starts:
        return None
    what = error.partition(": error: ")[2]
    lines = cut_middle(tuple(told.lines[starts[-1] :]), 2 * _LAST_WORDS)
    return _of(end, "usage", f"exited with code 2: {what}", details=lines)


def _no_module(end: WorkerEnd, told: _Told) -> Diagnosis | None:
    """Python found nothing to run: one line of its own, no traceback."""
    found = _NO_MODULE.match(told.lines[-1]) if told.lines else None
    if found is None or end.failure.status.code not in (1, 2):
        return None
    code = end.failure.status.code
    return _of(
        end, "import-error", f"exited with code {code}: {found['what']}", details=told.last_words
    )


def _native(end: WorkerEnd, told: _Told) -> Diagnosis | None:
    """Last words of C code with an exit code: 134 of a shell around it, or a handler's."""
    found = native_error.find(told.lines)
    if found is None or end.failure.status.code not in (1, 134, 139):
        return None
    headline = f"{describe(end.failure.status)}: {found.what}"
    lines = cut_middle(found.lines, _TRACEBACK)
    return _of(end, "abort", headline, details=lines, has_traceback=True)


def _bare(end: WorkerEnd, told: _Told) -> Diagnosis:
    """An exit code, and whatever was last on stderr."""
    code = end.failure.status.code or 0
    hint = ""
    if 128 < code < 160:
        hint = f"a shell says {code} for a command that was killed by {signal_name(code - 128)}"
    elif not told.lines and not end.evidence.stderr_read:
        hint = "what it wrote to stderr did not pass through phalanx; look where that went"
    return _of(
        end,
        "exit-code",
        describe(end.failure.status),
        details=told.last_words,
        hint=hint,
        blames_peer=any(map(_PEER.search, told.last_words)),
    )


# Signals


def _by_signal(end: WorkerEnd, told: _Told, name: str) -> Diagnosis:
    if name == "SIGKILL":
        return _killed(end, told)
    if told.recorded is not None and end.stopped_by is None:
        recorded = _recorded(end, told)
        assert recorded is not None
        return recorded
    if name == "SIGBUS" and _shm_is_full(end.evidence):
        return _of(
            end, "shm-full", f"was killed by SIGBUS: {_shm_text(end.evidence)}", **_words(told)
        )
    if name in _CRASHES or name == "SIGABRT":
        return _crashed(end, told, name)
    word = "interrupt" if name == "SIGINT" else "signal"
    printed = told.printed if name == "SIGINT" else None
    details = cut_middle(printed.lines, _TRACEBACK) if printed else told.last_words
    return _of(end, word, _by(end), details=details, has_traceback=printed is not None)


def _by(end: WorkerEnd) -> str:
    """ "was killed by SIGSEGV (segmentation fault) and dumped core"."""
    words = describe(end.failure.status)
    name = signal_name(end.failure.status.signal or 0)
    meaning = _MEANING.get(name)
    return words.replace(name, f"{name} ({meaning})", 1) if meaning else words


def _words(told: _Told) -> dict[str, object]:
    found = native_error.find(told.lines)
    if found is None:
        return {"details": told.last_words}
    return {
        "details": cut_middle(found.lines, _TRACEBACK, _TRACEBACK // 4),
        "has_traceback": found.has_stack,
    }


def _crashed(end: WorkerEnd, told: _Told, name: str) -> Diagnosis:
    word = "abort" if name == "SIGABRT" else "crash"
    found = native_error.find(told.lines)
    headline = _by(end)
    said = found.what.lower() if found is not None else "aborted"
    if found is not None and said != "aborted" and said not in headline.lower():
        headline = f"{headline}: {found.what}"
    hint = "" if found is not None and found.has_stack else BY_WORD[word].hint
    if name == "SIGBUS":
        hint = "often a full /dev/shm, or a mapped file that was cut off meanwhile"
    peer = any(map(_PEER.search, found.lines if found else told.last_words))
    return _of(end, word, headline, hint=hint, blames_peer=peer, **_words(told))


def _killed(end: WorkerEnd, told: _Told) -> Diagnosis:
    """SIGKILL: by the kernel for want of memory, or by somebody."""
    before = end.evidence.memory_before or MemoryCounters()
    after = end.evidence.memory_after or MemoryCounters()
    own = _risen(before.cgroup_oom_kills, after.cgroup_oom_kills)
    machine = _risen(before.machine_oom_kills, after.machine_oom_kills)
    headline = "was killed by SIGKILL"
    if own:
        of = f" (its limit is {size_text(after.limit)})" if after.limit else ""
        why = f"out of memory: the kernel killed in this control group{of}"
        return _of(end, "oom", f"{headline}, {why}", details=told.last_words)
    if machine:
        why = "out of memory: the kernel killed on this machine"
        return _of(end, "oom", f"{headline}, {why}", details=told.last_words)
    if own is None and machine is None:
        why = ": by the kernel for want of memory, or by somebody outside phalanx"
    else:
        why = " from outside: not by phalanx, not for want of memory"
    return _of(end, "killed", f"{headline}{why}", details=told.last_words)


def _risen(before: int | None, after: int | None) -> bool | None:
    return None if before is None or after is None else after > before


# /dev/shm


def _shm_is_full(evidence: Evidence) -> bool:
    size, free = evidence.shm_size, evidence.shm_free
    return bool(size) and free is not None and (free < _MIB or free * 100 < (size or 0))


def _shm_text(evidence: Evidence) -> str:
    return (
        f"/dev/shm is full ({size_text(evidence.shm_free or 0)} of "
        f"{size_text(evidence.shm_size or 0)} free)"
    )


def size_text(octets: int) -> str:
    """ "64 MiB", "1.5 GiB"."""
    amount = float(octets)
    for unit in ("octets", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f}".removesuffix(".0") + f" {unit}"
        amount /= 1024
    return f"{amount:.1f}".removesuffix(".0") + " TiB"
