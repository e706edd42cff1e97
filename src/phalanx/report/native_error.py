"""PURE: finds what C code has to say about its end in what a worker wrote to stderr.

Python's faulthandler, glibc, the C++ library and assertions each have words of their own; they are
the last that a process says before a signal ends it.
"""

from __future__ import annotations

import re

from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NativeError", "find"]

_FAULTHANDLER = re.compile(r"^Fatal Python error: (?P<what>.+)$")
_CPP = re.compile(r"^terminate called (?:after throwing an instance of '(?P<type>.+)'|.*)$")
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<what>.+)$")
_OTHERS = re.compile(
    r"(?P<what>"
    r"\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*.*"
    r"|(?:free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate|mremap_chunk)\(\): [a-z].*"
    r"|double free or corruption.*"
    r"|corrupted (?:size vs\. prev_size|double-linked list).*"
    r"|Fatal glibc error: .*"
    r"|^F\d{4} .*"
    r"|^thread '.*' panicked at .*"
    r"|AddressSanitizer: .*"
    r")$"
)
#: Said further up than this, it was not the last word.
_LAST_LINES = 400


class NativeError(Record):
    """What was said, and the lines from there on."""

    what: str
    lines: tuple[str, ...]
    #: It is faulthandler's, so the lines hold the stack of each thread.
    has_stack: bool = False


def find(lines: Sequence[str]) -> NativeError | None:
    """The first of the last words: what follows it is its consequence."""
    start = max(0, len(lines) - _LAST_LINES)
    told: NativeError | None = None
    for at in range(len(lines) - 1, start - 1, -1):
        found = _at(lines, at)
        if found is None:
            continue
        stack = found if found.has_stack else told
        if stack is not None and stack.has_stack:  # glibc's words tell more than "Aborted"
            told = NativeError(found.what, found.lines, has_stack=True)
        else:
            told = found
    return told


def _at(lines: Sequence[str], at: int) -> NativeError | None:
    line = lines[at]
    fault = _FAULTHANDLER.match(line)
    if fault:
        return NativeError(fault["what"], tuple(lines[at:]), has_stack=True)
    if line.startswith("terminate called "):
        return NativeError(_cpp(lines, at), tuple(lines[at:]))
    if ": Assertion " in line and "' failed" in line:
        return NativeError(line, tuple(lines[at:]))
    other = _OTHERS.search(line)
    return NativeError(other["what"], tuple(lines[at:])) if other else None


def _cpp(lines: Sequence[str], at: int) -> str:
    """Type and text of a C++ exception, or that there was none."""
    thrown = _CPP.match(lines[at])
    kind = thrown["type"] if thrown and thrown["type"] else lines[at]
    what = _WHAT.match(lines[at + 1]) if at + 1 < len(lines) else None
    return f"{kind}: {what['what']}" if what else kind
