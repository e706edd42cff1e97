"""PURE: lines that several ranks say alike within a moment, said once: `[0-7] epoch 1`.

A line waits for at most WINDOW_S for the other ranks to say the same. The order of each rank's
lines is kept: a line joins one that waits only if all that its rank has said before is printed, or
waits further ahead. Above RATE_LIMIT lines a second nobody reads along, and looking for equals
would hold the job up: lines then pass with their own rank, for a second.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Fold", "rank_ranges"]

WINDOW_S = 0.25
RATE_LIMIT = 5000
_SPAN_S = 0.1


class _Entry:
    def __init__(self, place: int, text: bytes, rank: int, at: float) -> None:
        self.place = place
        self.text = text
        self.ranks = {rank}
        self.at = at


class Fold:
    """The lines of one console stream. `shown`: how many ranks there are to wait for."""

    def __init__(self, shown: int, prefix: Callable[[str], bytes]) -> None:
        self._shown = shown
        self._prefix = prefix
        self._waiting: deque[_Entry] = deque()
        self._by_text: dict[bytes, list[_Entry]] = {}
        #: Of each rank, the place of its newest line.
        self._newest: dict[int, int] = {}
        self._places = 0
        self._span_began = float("-inf")
        self._in_span = 0
        self._unfolded_until = float("-inf")

    @property
    def deadline(self) -> float | None:
        """When the line that has waited longest is to be printed."""
        return self._waiting[0].at + WINDOW_S if self._waiting else None

    def add(self, rank: int, block: bytes, now: float) -> list[bytes]:
        """Whole lines of a rank; what is to be printed now."""
        lines = block[:-1].split(b"\n")
        if self._too_many(len(lines), now):
            prefix = self._prefix(str(rank))
            return [*self.flush(), prefix + block[:-1].replace(b"\n", b"\n" + prefix) + b"\n"]
        for line in lines:
            self._add(rank, line.removesuffix(b"\r"), now)
        return self.due(now)

    def _too_many(self, lines: int, now: float) -> bool:
        if now - self._span_began >= _SPAN_S:
            self._span_began, self._in_span = now, 0
        self._in_span += lines
        if self._in_span > RATE_LIMIT * _SPAN_S:
            self._unfolded_until = now + 1.0
        return now < self._unfolded_until

    def _add(self, rank: int, text: bytes, now: float) -> None:
        after = self._newest.get(rank, -1)
        for entry in self._by_text.get(text, ()):
            if entry.place > after and rank not in entry.ranks:
                entry.ranks.add(rank)
                self._newest[rank] = entry.place
                return
        entry = _Entry(self._places, text, rank, now)
        self._places += 1
        self._newest[rank] = entry.place
        self._waiting.append(entry)
        self._by_text.setdefault(text, []).append(entry)

    def due(self, now: float) -> list[bytes]:
        """What has waited long enough, or for all."""
        printed = []
        while self._waiting:
            entry = self._waiting[0]
            if len(entry.ranks) < self._shown and now < entry.at + WINDOW_S:
                break
            printed.append(self._pop())
        return printed

    def flush(self) -> list[bytes]:
        """All of it."""
        return [self._pop() for _ in range(len(self._waiting))]

    def _pop(self) -> bytes:
        entry = self._waiting.popleft()
        same = self._by_text[entry.text]
        same.remove(entry)
        if not same:
            del self._by_text[entry.text]
        return self._prefix(rank_ranges(entry.ranks)) + entry.text + b"\n"


def rank_ranges(ranks: Iterable[int]) -> str:
    """ "0-3,5" for 0, 1, 2, 3 and 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
