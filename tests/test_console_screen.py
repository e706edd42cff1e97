"""What a person sees on a terminal that several ranks share: whole lines, and a live one below."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from phalanx.console.lines import screen_lines
from phalanx.console.screen import Screen

COLUMNS = 20
PREFIX = b"\x1b[36m[0]\x1b[0m "


class Terminal:
    """As much of a terminal as is needed: what moves the cursor, ESC[K and colours."""

    def __init__(self, columns: int = COLUMNS) -> None:
        self.columns = columns
        self.rows: list[dict[int, str]] = [{}]
        self.row = self.column = 0
        self.coloured = False

    def feed(self, octets: bytes) -> None:
        text = octets.decode()
        while text:
            sequence = re.match(r"\x1b\[([0-9;:]*)([Km])", text)
            if sequence is None:
                self._char(text[0])
                text = text[1:]
                continue
            text = text[sequence.end() :]
            if sequence[2] == "m":
                self.coloured = sequence[1] not in ("", "0")
            else:
                cells = self.rows[self.row]
                self.rows[self.row] = {at: c for at, c in cells.items() if at < self.column}

    def _char(self, char: str) -> None:
        match char:
            case "\r":
                self.column = 0
            case "\n":
                self._down()
                self.column = 0
            case "\v" | "\f":
                self._down()
            case "\b":
                self.column = max(0, self.column - 1)
            case "\t":
                self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
            case "\x1b":
                raise AssertionError("an escape that this terminal would obey")
            case _ if ord(char) >= 32 and char != "\x7f":
                self._print(char)

    def _print(self, char: str) -> None:
        width = 1 + (unicodedata.east_asian_width(char) in "WF")
        if self.column + width > self.columns:
            self._down()
            self.column = 0
        self.rows[self.row][self.column] = char
        if width == 2:
            self.rows[self.row][self.column + 1] = ""
        self.column += width

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append({})

    @property
    def seen(self) -> list[str]:
        return [
            "".join(row.get(at, " ") for at in range(max(row, default=-1) + 1)) for row in self.rows
        ]


WORDS = st.sampled_from(
    ["a", "epoch 12", "字字字", "é", " ", "0123456789", "\x1b[31m", "\x1b[2J", "\x1b"]
)
LINE = st.lists(WORDS, max_size=5).map("".join).map(str.encode)
LIVE_WORDS = WORDS | st.sampled_from(
    ["\r", "\b", "\t", "\v", "\f", "\x1b[A", "\x1b[K", "\x00", "\x0e"]
)
LIVE = st.lists(LIVE_WORDS, max_size=8).map("".join).map(str.encode)
UPDATES = st.lists(st.tuples(st.lists(LINE, max_size=3), LIVE), max_size=12)


def _expected(lines: list[bytes]) -> list[str]:
    terminal = Terminal()
    for line in lines:
        terminal.feed(screen_lines(line + b"\n", PREFIX))
    return terminal.seen


@given(UPDATES)
def test_whole_lines_stay_and_the_live_line_is_the_last_row(
    updates: list[tuple[list[bytes], bytes]],
) -> None:
    screen, terminal = Screen(COLUMNS), Terminal()
    printed: list[bytes] = []
    for lines, live in updates:
        blocks = [screen_lines(line + b"\n", PREFIX) for line in lines]
        terminal.feed(b"".join(screen.update(blocks, PREFIX, live)))
        printed += lines

        assert terminal.seen[:-1] == _expected(printed)[:-1]
        assert terminal.row == len(terminal.rows) - 1
        assert terminal.seen[-1].startswith("[0] " if live else "")
        assert not terminal.coloured
    terminal.feed(b"".join(screen.update([], b"", b"")))

    assert terminal.seen == _expected(printed)


def test_a_bar_is_shown_as_it_goes_and_other_lines_appear_above_it() -> None:
    screen, terminal = Screen(COLUMNS), Terminal()

    terminal.feed(b"".join(screen.update([], b"[0] ", b"10%\r20%")))
    assert terminal.seen == ["[0] 20%"]
    terminal.feed(b"".join(screen.update([b"[1] hello\n"], b"[0] ", b"20%\r30%")))
    assert terminal.seen == ["[1] hello", "[0] 30%"]
    terminal.feed(b"".join(screen.update([b"[0] done\n"], b"", b"")))
    assert terminal.seen == ["[1] hello", "[0] done", ""]


def test_nothing_is_written_if_nothing_has_changed() -> None:
    screen = Screen(COLUMNS)
    screen.update([], b"[0] ", b"10%")

    assert screen.update([], b"[0] ", b"9%\r10%") == []
    assert Screen(COLUMNS).update([], b"", b"") == []


def test_a_live_line_that_is_too_long_is_cut_before_the_last_column() -> None:
    screen, terminal = Screen(COLUMNS), Terminal()

    terminal.feed(b"".join(screen.update([], b"[0] ", b"x" * 50)))

    assert terminal.seen == ["[0] " + "x" * (COLUMNS - 5)]


def test_after_a_resize_the_line_has_the_new_width() -> None:
    screen = Screen(COLUMNS)
    screen.update([], b"", b"x" * 50)
    screen.columns = 10

    assert b"".join(screen.update([], b"", b"x" * 50)) == b"\r\x1b[K" + b"x" * 9 + b"\x1b[0m"


def test_a_terminal_without_a_width_shows_no_live_text_and_does_no_harm() -> None:
    screen = Screen(0)

    assert b"x" not in b"".join(screen.update([b"a\n"], b"[0] ", b"x" * 5))
