"""Whole lines on their way to a screen: prefixes, and escapes that cannot harm what is around."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.console.lines import cut_to_width, final_state, one_row, prefixed, screen_lines, tamed

RESET = b"\x1b[0m"
#: Text with what terminals make of it thrown in.
PIECES = ("a", "loss 1", "é", "字", "\x1b", "[", "]", "2J", "31m", "\x1b[1m", "\x1b[A", "\x1b[?25l")
MORE = ("\x1b]0;t\x07", "\x08", "\x1bc", "\x1b7", ";", "\t", "m")
ODD = st.lists(st.sampled_from(PIECES + MORE), max_size=12).map("".join).map(str.encode)


@pytest.mark.parametrize(
    ("block", "printed"),
    [
        (b"a\n", b"[0] a\n"),
        (b"a\nb\n", b"[0] a\n[0] b\n"),
        (b"\n", b"[0] \n"),
        (b"\n\n", b"[0] \n[0] \n"),
    ],
)
def test_each_line_has_its_prefix(block: bytes, printed: bytes) -> None:
    assert prefixed(block, b"[0] ") == printed


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")), min_size=1))
def test_prefixes_are_all_that_is_added(lines: list[bytes]) -> None:
    block = b"".join(line + b"\n" for line in lines)

    assert prefixed(block, b"> ") == b"".join(b"> " + line + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b"no return", b"no return"),
        (b"10%\r20%\r30%", b"30%"),
        (b"\r30%\r", b"30%"),
        (b"from Windows\r", b"from Windows"),
        (b"\r\r", b""),
        (b"a longer text\rshort", b"short"),
    ],
)
def test_of_a_line_that_is_written_over_the_last_is_left(line: bytes, left: bytes) -> None:
    assert final_state(line) == left


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m"),
        (b"\x1b[1;38:5:9mbold\x1b[m", b"\x1b[1;38:5:9mbold\x1b[m"),
        (b"\x1b[31mred for ever", b"\x1b[31mred for ever\x1b[0m"),
        (b"\x1b[2J\x1b[Hcleared", b"cleared"),
        (b"up\x1b[1Aand away\x1b[K", b"upand away"),
        (b"\x1b[?25lhidden cursor", b"hidden cursor"),
        (b"\x1b]0;a title\x07text", b"text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1bcreset", b"reset"),
        (b"\x1b7saved\x1b8", b"saved"),
        (b"\x1b(0graphics", b"graphics"),
        (b"ends in an escape\x1b", b"ends in an escape"),
        (b"\x1b\x08[2J", b"\x08[2J"),
        (b"\x1b[>4;2mkeys\x1b[?1m", b"keys"),
    ],
)
def test_colours_stay_and_what_moves_the_cursor_goes(line: bytes, left: bytes) -> None:
    assert tamed(line) == left


@given(ODD)
def test_no_escape_is_left_but_colours_which_end_with_the_line(line: bytes) -> None:
    import re

    left = tamed(line)
    colours = re.findall(rb"\x1b\[[0-9;:]*m", left)

    assert left.count(b"\x1b") == len(colours)
    assert not colours or colours[-1] in (RESET, b"\x1b[m")


def test_a_screen_shows_each_line_as_it_was_at_last() -> None:
    block = b"plain\n10%\r100%\r\n\x1b[31mred\n\n"

    assert screen_lines(block, b"[1] ") == b"[1] plain\n[1] 100%\n[1] \x1b[31mred\x1b[0m\n[1] \n"


@given(ODD.map(lambda line: tamed(line.replace(b"\x08", b""))), st.integers(0, 30))
def test_a_cut_line_is_a_beginning_of_the_line_and_has_its_width(line: bytes, columns: int) -> None:
    import re
    import unicodedata

    cut = cut_to_width(line, columns).decode()
    text = re.sub(r"\x1b\[[0-9;:]*m", "", cut)
    whole = re.sub(r"\x1b\[[0-9;:]*m", "", line.decode())

    assert whole.startswith(text)
    assert sum(1 + (unicodedata.east_asian_width(char) == "W") for char in text) <= columns
    assert text == whole or cut.endswith("\x1b[0m")


def test_wide_characters_take_two_columns_and_colours_none() -> None:
    assert cut_to_width("字字字".encode(), 5) == "字字\x1b[0m".encode()
    assert cut_to_width(b"\x1b[31mab\x1b[0m", 2) == b"\x1b[31mab\x1b[0m"
    assert cut_to_width("e\u0301e\u0301".encode(), 2) == "e\u0301e\u0301".encode()


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"a\tb", b"a    b"),
        (b"|\b/\b-", b"-"),
        (b"\b\ba", b"a"),
        (b"10%\b\b\b20%", b"20%"),
        ("é\b字".encode(), "字".encode()),
        (b"\x1b[31m\bred\x1b[0m", b"\x1b[31mred\x1b[0m"),
        (b"down\x0b\x0cand\x00 away\x07", b"downand away"),
    ],
)
def test_a_line_that_is_drawn_anew_takes_one_row(line: bytes, row: bytes) -> None:
    assert one_row(line) == row
