"""PURE: one stream of a worker, cut into whole lines, and its last words."""

from __future__ import annotations

from phalanx.console.lines import ESC, final_state, tamed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.console.plan import Source
    from phalanx.console.region import Region

__all__ = ["Reader"]

#: A line that is longer is printed in pieces.
_LONGEST_LINE = 1 << 20
#: Buffers of an unfinished line: as octets by themselves they would take 40 times as much memory.
_MOST_PIECES = 256
#: Last words: a traceback has its end, and what it says, in here.
_LAST_WORDS = 1 << 14


class Reader:
    """What is known of a stream while it is read. Nothing here reads or writes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._unfinished: list[bytes] = []
        self._unfinished_size = 0
        #: While it draws lines again and again.
        self._region: Region | None = None
        self._last: list[bytes] = []
        self._last_size = 0

    def take(self, chunk: bytes, now: float = 0.0) -> list[bytes | memoryview]:
        """What has been read, at `now` in seconds; the buffers of all whole lines, in order."""
        if self.source.last_words:
            self._remember(chunk)
        if self.source.style in ("through", "keyboard"):
            return [chunk]
        if self._is_live and (self._region is not None or self._begins_region(chunk)):
            assert self._region is not None
            return _as_lines(self._region.feed(chunk, now))
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._keep(chunk)
            return self.give_up_line() if self._unfinished_size > _LONGEST_LINE else []
        whole: list[bytes | memoryview] = [*self._unfinished]
        whole.append(chunk if end == len(chunk) else memoryview(chunk)[:end])
        self._unfinished, self._unfinished_size = [], 0
        if end < len(chunk):
            self._keep(chunk[end:])
        return whole

    @property
    def _is_live(self) -> bool:
        """On a terminal, a line may be written over; a file gets all of it."""
        return self.source.style == "live" and not self.source.file

    def _begins_region(self, chunk: bytes) -> bool:
        if ESC not in chunk:
            return False
        from phalanx.console.region import MOVES_UP, Region

        if not MOVES_UP.search(chunk):
            return False
        self._region = Region()
        self._region.feed(self.unfinished, float("-inf"))
        self._unfinished, self._unfinished_size = [], 0
        return True

    @property
    def deadline(self) -> float | None:
        """When `settle` has something to do."""
        return self._region.deadline if self._region is not None else None

    def settle(self, now: float) -> list[bytes | memoryview]:
        """The lines that are drawn again no more."""
        if self._region is None or now < self._region.deadline:
            return []
        lines = _as_lines(self._region.settled(now))
        if self._region.is_at_rest:
            (last,) = self._region.rest()
            self._region = None
            self._keep(last)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._unfinished.append(piece)
        self._unfinished_size += len(piece)
        if self._is_live and b"\r" in piece:
            # Of a line that is written over again and again, the state it is in.
            line = self.unfinished
            kept = final_state(line) + (b"\r" if line.endswith(b"\r") else b"")
            self._unfinished, self._unfinished_size = [kept], len(kept)
        elif len(self._unfinished) > _MOST_PIECES:
            self._unfinished = [self.unfinished]

    @property
    def unfinished(self) -> bytes:
        """The line that has no end yet."""
        if self._region is not None:
            return self._region.unfinished
        if len(self._unfinished) > 1:
            self._unfinished = [b"".join(self._unfinished)]
        return self._unfinished[0] if self._unfinished else b""

    def give_up_line(self) -> list[bytes | memoryview]:
        """The buffers of what is unfinished, which nobody will finish."""
        rows = [self.unfinished] if self._region is None else self._region.rest()
        self._unfinished, self._unfinished_size, self._region = [], 0, None
        if self._is_live:  # what only moves the cursor leaves nothing to see
            rows = [row for row in rows if tamed(final_state(row))]
        line = b"\n".join(rows)
        return [line] if line else []

    def _remember(self, chunk: bytes) -> None:
        self._last.append(chunk[-_LAST_WORDS:])
        self._last_size += len(self._last[-1])
        if self._last_size > 2 * _LAST_WORDS or len(self._last) > 64:
            self._last = [self.last_words]
            self._last_size = len(self._last[0])

    @property
    def last_words(self) -> bytes:
        """The last it wrote, cut to a bound."""
        return b"".join(self._last)[-_LAST_WORDS:]


def _as_lines(rows: list[bytes]) -> list[bytes | memoryview]:
    return [b"".join([row + b"\n" for row in rows])] if rows else []
