"""A stream cut into lines: however the pieces come, the lines are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.console import reader as module
from phalanx.console.lines import screen_lines
from phalanx.console.plan import Source
from phalanx.console.reader import Reader

TEXT = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\x1b[31m", "é".encode(), b"\x00"]),
    max_size=30,
).map(b"".join)
CUTS = st.lists(st.integers(1, 7), max_size=60)


def _pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in cuts:
        pieces.append(text[at : at + size])
        at += size
    return [piece for piece in (*pieces, text[at:]) if piece]


def _reader(style: str = "plain", *, file: str = "", last_words: bool = False) -> Reader:
    return Reader(Source(0, 0, "stdout", 1, style, file=file, last_words=last_words))


@given(TEXT, CUTS)
@pytest.mark.parametrize("style", ["plain", "prefix", "fold"])
def test_what_comes_out_are_the_octets_that_went_in_and_whole_lines(
    style: str, text: bytes, cuts: list[int]
) -> None:
    reader, whole = _reader(style), b""
    for piece in _pieces(text, cuts):
        lines = b"".join(reader.take(piece))
        assert not lines or lines.endswith(b"\n")
        whole += lines
        assert whole + reader.unfinished == text[: len(whole) + len(reader.unfinished)]

    assert whole == text[: text.rfind(b"\n") + 1]
    assert b"".join(reader.give_up_line()) == text[len(whole) :]
    assert reader.unfinished == b""


@given(TEXT, CUTS)
@pytest.mark.parametrize("file", ["", "/logs/0/stdout.log"])
def test_live_lines_look_the_same_however_they_come(
    file: str, text: bytes, cuts: list[int]
) -> None:
    reader, shown = _reader("live", file=file), b""
    for piece in _pieces(text, cuts):
        lines = b"".join(reader.take(piece))
        shown += screen_lines(lines, b"> ") if lines else b""
    end = b"".join(reader.give_up_line())

    whole = text[: text.rfind(b"\n") + 1]
    assert shown == (screen_lines(whole, b"> ") if whole else b"")
    assert screen_lines(end + b"\n", b"") == screen_lines(text[len(whole) :] + b"\n", b"")


@given(TEXT, CUTS)
def test_keys_are_echoed_at_once(text: bytes, cuts: list[int]) -> None:
    reader = _reader("keyboard")
    pieces = _pieces(text, cuts)

    assert [b"".join(reader.take(piece)) for piece in pieces] == pieces


@given(TEXT, CUTS)
def test_last_words_are_the_end_of_what_was_written(text: bytes, cuts: list[int]) -> None:
    reader = _reader(last_words=True)
    for piece in _pieces(text, cuts):
        reader.take(piece)

    assert reader.last_words == text


@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_of_many_words_the_last_16_kib_are_kept(size: int) -> None:
    reader = _reader(last_words=True)
    text = b"".join(b"%d\n" % number for number in range(40_000))
    for piece in _pieces(text, [size] * (len(text) // size)):
        reader.take(piece)

    assert reader.last_words == text[-(1 << 14) :]


@pytest.mark.parametrize(
    ("style", "file"), [("plain", ""), ("live", "/x"), ("live", ""), ("fold", "")]
)
@pytest.mark.parametrize("piece", [b"x" * 100, b"x" * 65536])
def test_a_line_without_end_is_printed_in_pieces_and_held_in_few(
    style: str, file: str, piece: bytes
) -> None:
    reader, came = _reader(style, file=file), 0
    for _ in range((1 << 19) // len(piece)):
        buffers = reader.take(piece)
        came += sum(map(len, buffers))
        assert len(buffers) <= 1
        assert len(reader.unfinished) <= module._LONGEST_LINE
    came += sum(map(len, reader.give_up_line()))

    assert came == (1 << 19) // len(piece) * len(piece)


def test_a_line_of_many_small_pieces_is_held_in_few_buffers() -> None:
    """Each octet by itself would take 40 times as much, and a system call per thousand."""
    reader = _reader()
    for _ in range(100_000):
        reader.take(b"x")

    assert len(reader.take(b"\n")) < 1000


def test_a_bar_that_is_drawn_for_ever_takes_no_memory() -> None:
    reader = _reader("live")
    for percent in range(10_000):
        assert reader.take(b"\r%d%%" % percent) == []

    assert reader.unfinished == b"9999%"
