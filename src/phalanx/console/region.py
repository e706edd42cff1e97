"""PURE: the lines that a program draws again and again, for bars of more than one line.

Such a program moves the cursor up and writes over what it has written (rich, nested bars of tqdm).
Its lines are kept here, as rows with a cursor, until they are final: when the program has gone on
below them for a while without coming back. What is then printed is the state they had last.

Only what bars are made of is understood: newline, carriage return, cursor up and down, and
clearing. A row is written over as a whole.
"""

from __future__ import annotations

import re

__all__ = ["MOVES_UP", "Region"]

#: Cursor up, the sign of a program that draws again.
MOVES_UP = re.compile(rb"\x1b\[\d*A")
_PARTS = re.compile(rb"(\n|\r|\x1b\[\d{0,4}[ABJK])")
_MOVE = re.compile(rb"\x1b\[(\d{0,4})([ABJK])")
#: Rows that nobody has come back to for so long are final, in seconds.
_FINAL_AFTER_S = 1.0
#: More rows than that are not kept.
_MOST_ROWS = 100


class Region:
    """The rows of one stream. `feed` gives back what is final."""

    def __init__(self) -> None:
        self._rows: list[bytes] = [b""]
        self._at = 0
        #: What is written next begins the row anew.
        self._anew = False
        self._came_back_at = float("-inf")

    @property
    def unfinished(self) -> bytes:
        """The row that the cursor is in."""
        return self._rows[self._at]

    def feed(self, chunk: bytes, now: float) -> list[bytes]:
        """What has been read; the rows that are final by that, in order."""
        if MOVES_UP.search(chunk):
            self._came_back_at = now
        for part in _PARTS.split(chunk):
            self._take(part)
        over = len(self._rows) - _MOST_ROWS
        return self._pop(over) if over > 0 else self.settled(now)

    def settled(self, now: float) -> list[bytes]:
        """The rows above the cursor, if the program has not been back for a while."""
        if now < self._came_back_at + _FINAL_AFTER_S:
            return []
        return self._pop(self._at)

    @property
    def is_at_rest(self) -> bool:
        """Nothing but the unfinished row is left."""
        return len(self._rows) == 1

    @property
    def deadline(self) -> float:
        """When to ask for what is settled."""
        return self._came_back_at + _FINAL_AFTER_S

    def rest(self) -> list[bytes]:
        """All rows: nobody will come back."""
        rows, self._rows, self._at = self._rows, [b""], 0
        return rows

    def _take(self, part: bytes) -> None:
        if part == b"\n":
            self._at += 1
            self._anew = self._at < len(self._rows)
            if not self._anew:
                self._rows.append(b"")
        elif part == b"\r":
            self._anew = True
        elif moved := _MOVE.fullmatch(part):
            self._obey(moved[2], moved[1])
        elif part:
            self._rows[self._at] = part if self._anew else self._rows[self._at] + part
            self._anew = False

    def _obey(self, what: bytes, number: bytes) -> None:
        if what == b"A":
            self._at = max(0, self._at - int(number or b"1"))
        elif what == b"B":
            self._at = min(len(self._rows) - 1, self._at + int(number or b"1"))
        else:  # clear: from the cursor on, or with 2 the whole
            if self._anew or number == b"2":
                self._rows[self._at] = b""
            if what == b"J":
                del self._rows[self._at + 1 :]

    def _pop(self, count: int) -> list[bytes]:
        """The first rows: they are final."""
        popped, self._rows = self._rows[:count], self._rows[count:]
        self._at = max(0, self._at - count)
        if not self._rows:
            self._rows = [b""]
        return popped
