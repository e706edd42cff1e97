"""The console: whole lines of many ranks, in the style of each, on stdout and stderr.

Lines are gathered for a turn of the writer's loop and then handed to a place in one go.
"""

from __future__ import annotations

from phalanx.console.fold import Fold
from phalanx.console.lines import ESC, final_state, prefixed, screen_lines, tamed
from phalanx.console.places import Place, Stream
from phalanx.console.screen import Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from phalanx.console.plan import Facts, Source
    from phalanx.console.reader import Reader

__all__ = ["Display"]

#: A live line is drawn anew so often at most, in seconds.
_LIVE_INTERVAL_S = 0.05
#: It appears when the line has had no end for so long.
_LIVE_AFTER_S = 0.03


class Display:
    """One of stdout and stderr, or both where they are one file."""

    def __init__(self, place: Place, stream: Stream, facts: Facts, *fds: int) -> None:
        self.place = place
        self.stream = stream
        #: What is shown on any of these is shown here.
        self.fds = fds
        #: When something has to be done, whatever is read; None: nothing.
        self.deadline: float | None = None
        self._is_dumb = facts.dumb
        self._coloured = False
        self._screen = Screen(facts.columns)
        self._fold: Fold | None = None
        #: For the screen, since the last flush.
        self._lines: list[bytes] = []
        self._drawn_at = float("-inf")
        #: Since when there has been a line without an end that is not on the screen.
        self._unfinished_since: float | None = None
        #: The last octet that was written was no newline; whose it was.
        self._open_line: Reader | None = None

    def begin_round(self, sources: Iterable[Source]) -> None:
        folded = [source for source in sources if source.style == "fold"]
        self._coloured = any(ESC in source.prefix for source in folded)
        ranks = {source.rank for source in folded}
        self._fold = Fold(len(ranks), self._fold_prefix) if ranks else None

    def _fold_prefix(self, ranks: str) -> bytes:
        return f"\033[36m[{ranks}]\033[0m ".encode() if self._coloured else f"[{ranks}] ".encode()

    def resize(self, columns: int) -> None:
        self._screen.columns = columns

    # In

    def add(self, reader: Reader, buffers: list[bytes | memoryview], now: float) -> None:
        """Lines of a stream, whole but perhaps for the last."""
        source = reader.source
        if source.style in ("through", "plain", "keyboard"):
            self._put_gathered()  # what was said before comes before
            self._close_line(but=reader)
            self.place.put(self.stream, buffers)
            self._open_line = None if bytes(buffers[-1][-1:]) == b"\n" else reader
            return
        block = b"".join(buffers)
        if not block.endswith(b"\n"):
            block += b"\n"
        match source.style:
            case "live":
                self._lines.append(screen_lines(block, source.prefix))
            case "fold" if self._fold is not None:
                self._lines += self._fold.add(source.rank, screen_lines(block, b""), now)
            case _:
                self._lines.append(prefixed(block, source.prefix))

    def say(self, text: str) -> None:
        """A line of phalanx."""
        self._lines.append(f"phalanx: {text}\n".encode(errors="replace"))

    def _put_gathered(self) -> None:
        if self._lines and not self._screen.has_live_line:
            self._close_line()
            self.place.put(self.stream, [*self._lines])
            self._lines = []

    def _close_line(self, but: Reader | None = None) -> None:
        """Somebody else's line must not go on in one that has no end."""
        if self._open_line is not None and self._open_line is not but:
            self.place.put(self.stream, [b"\n"])
            self._open_line = None

    def end_line(self) -> None:
        """What is printed next, by whomever, begins a line."""
        self._close_line()

    # Out

    def flush(self, readers: Iterable[Reader], now: float, *, last: bool = False) -> None:
        """Hand on what has gathered; `readers`: whose unfinished lines may be shown."""
        if self._fold is not None:
            self._lines += self._fold.flush() if last else self._fold.due(now)
        live = None if last or self._is_dumb else self._live(readers)
        self.deadline = self._fold.deadline if self._fold is not None else None
        if live is None:
            self._unfinished_since = None
        elif not self._screen.has_live_line:
            # Most lines come in two pieces, the text and its end: those are not worth a flicker.
            if self._unfinished_since is None:
                self._unfinished_since = now
            due = self._unfinished_since + _LIVE_AFTER_S
            if now < due:
                live = None
                self.deadline = min(due, self.deadline or due)
        due = self._drawn_at + _LIVE_INTERVAL_S
        late = now < due or self.place.waiting  # nobody sees more than the eye, or a slow line
        if live is not None and not self._lines and late and self._screen.has_live_line:
            due = max(due, now + _LIVE_INTERVAL_S / 2)
            self.deadline = min(due, self.deadline or due)
            return
        prefix, unfinished = (live.source.prefix, live.unfinished) if live else (b"", b"")
        pieces = self._screen.update(self._lines, prefix, unfinished)
        self._lines = []
        if pieces:
            self._close_line()
            self._drawn_at = now
            self.place.put(self.stream, [*pieces])

    def _live(self, readers: Iterable[Reader]) -> Reader | None:
        """The lowest rank with a line that is not finished."""
        there = (
            reader
            for reader in readers
            if reader.source.style == "live"
            and reader.source.shown_on in self.fds
            and tamed(final_state(reader.unfinished))
        )
        return min(there, key=lambda reader: reader.source.rank, default=None)


def displays(facts: Facts, wake: Callable[[], None]) -> dict[int, Display]:
    """The display of each of the descriptors 1 and 2: the same if they are the same file."""
    first = Display(Place(wake), Stream(1, "stdout"), facts, *((1, 2) if facts.same_file else (1,)))
    if facts.same_file:
        return {1: first, 2: first}
    return {1: first, 2: Display(Place(wake), Stream(2, "stderr"), facts, 2)}
