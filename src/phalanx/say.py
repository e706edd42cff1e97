"""Our own lines on stderr: few, whole, and never in the way.

No process of ours may stand still, or end, because nobody reads what it says. A line is written
when stderr takes it at once; else it waits here, in order, and is tried again with the next one,
with `flush`, or at the end with `finish`. A stderr that is gone loses lines, and nothing else.
"""

from __future__ import annotations

import os
import select
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["finish", "flush", "printable", "say", "say_block"]

#: Lines kept while nobody reads; more are dropped, oldest first.
_LINES = 100
#: A pipe that is writable takes this much without blocking (PIPE_BUF).
_PIECE = 4096

_waiting: list[bytes] = []


def say(text: str) -> None:
    """Print one line, now or as soon as stderr takes it."""
    _put(f"phalanx: {text}\n")


def say_block(lines: Sequence[str]) -> None:
    """Print these lines as they are and together: no line of ours comes between, or is dropped."""
    _put("".join(f"{line}\n" for line in lines))


def _put(text: str) -> None:
    _waiting.append(text.encode(errors="replace"))
    if len(_waiting) > _LINES:
        del _waiting[0]
    flush()


def printable(text: str) -> str:
    """Foreign text for a line of ours: nothing in it ends the line, or acts on a screen."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def flush() -> None:
    """Write what waits, as far as stderr takes it at once."""
    _write(0.0)


def finish(timeout_s: float = 1.0) -> None:
    """Before leaving: give a slow reader this long to take what waits."""
    _write(timeout_s)


def _write(timeout_s: float) -> None:
    if not _waiting:
        return
    until = monotonic() + timeout_s
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    try:
        while _waiting and ready.poll(max(0.0, until - monotonic()) * 1000):
            written = os.write(2, _waiting[0][:_PIECE])
            _waiting[0] = _waiting[0][written:]
            if not _waiting[0]:
                del _waiting[0]
    except BlockingIOError:
        pass
    except OSError:
        _waiting.clear()
