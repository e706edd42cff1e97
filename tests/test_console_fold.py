"""What several ranks say alike is said once, soon, and in each rank's own order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.console.fold import RATE_LIMIT, WINDOW_S, Fold, rank_ranges

RANKS = 4
#: (rank, text, seconds since the one before)
SAID = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from([b"a", b"b", b"c", b""]),
        st.sampled_from([0.0, 0.001, 0.04, 0.1, 0.3]),
    ),
    max_size=60,
)


def _fold(shown: int = RANKS) -> Fold:
    return Fold(shown, lambda ranks: f"[{ranks}] ".encode())


def _of_each(printed: list[bytes]) -> dict[int, list[bytes]]:
    """The lines that each rank is said to have said."""
    lines: dict[int, list[bytes]] = {rank: [] for rank in range(RANKS)}
    for line in b"".join(printed).splitlines():
        ranks, _, text = line.partition(b"] ")
        for part in ranks[1:].decode().split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                lines[rank].append(text)
    return lines


@given(SAID)
def test_each_rank_has_said_what_it_said_in_its_order(said: list[tuple[int, bytes, float]]) -> None:
    fold, now, printed = _fold(), 0.0, []
    for rank, text, pause in said:
        now += pause
        printed += fold.add(rank, text + b"\n", now)
    printed += fold.flush()

    expected: dict[int, list[bytes]] = {rank: [] for rank in range(RANKS)}
    for rank, text, _pause in said:
        expected[rank].append(text)
    assert _of_each(printed) == expected


@given(SAID)
def test_a_line_is_printed_within_the_window_if_deadlines_are_kept(
    said: list[tuple[int, bytes, float]],
) -> None:
    fold, now = _fold(), 0.0
    spoken: dict[int, list[float]] = {rank: [] for rank in range(RANKS)}
    lateness: list[float] = []

    def see(printed: list[bytes]) -> None:
        for rank, lines in _of_each(printed).items():
            for _line in lines:
                lateness.append(now - spoken[rank].pop(0))

    for rank, text, pause in said:
        then = now + pause
        while fold.deadline is not None and fold.deadline <= then:
            now = fold.deadline
            see(fold.due(now))
        now = then
        spoken[rank].append(now)
        see(fold.add(rank, text + b"\n", now))
    while fold.deadline is not None:
        now = fold.deadline
        see(fold.due(now))

    assert not any(spoken.values())
    assert max(lateness, default=0.0) <= WINDOW_S + 1e-9


def test_a_line_of_all_is_printed_once_and_at_once() -> None:
    fold = _fold(shown=3)

    assert fold.add(0, b"epoch 1\n", 0.0) == []
    assert fold.add(2, b"epoch 1\n", 0.01) == []
    assert fold.add(1, b"epoch 1\n", 0.02) == [b"[0-2] epoch 1\n"]
    assert fold.deadline is None


def test_a_line_of_some_waits_for_the_window() -> None:
    fold = _fold()
    fold.add(0, b"epoch 1\n", 1.0)
    fold.add(3, b"epoch 1\n", 1.05)

    assert fold.deadline == pytest.approx(1.0 + WINDOW_S)
    assert fold.due(1.0 + WINDOW_S / 2) == []
    assert fold.due(1.0 + WINDOW_S) == [b"[0,3] epoch 1\n"]


def test_a_rank_that_says_a_thing_twice_has_said_it_twice() -> None:
    fold = _fold(shown=2)
    fold.add(0, b"x\nx\n", 0.0)

    assert fold.add(1, b"x\nx\n", 0.0) == [b"[0-1] x\n", b"[0-1] x\n"]


def test_carriage_returns_at_the_end_make_no_difference() -> None:
    fold = _fold(shown=2)
    fold.add(0, b"x\r\n", 0.0)

    assert fold.add(1, b"x\n", 0.0) == [b"[0-1] x\n"]


def test_above_the_rate_lines_pass_with_their_own_rank_behind_what_waited() -> None:
    fold = _fold()
    fold.add(0, b"first\n", 0.0)
    many = b"x\n" * RATE_LIMIT

    printed = b"".join(fold.add(1, many, 0.01)).splitlines()

    assert printed == [b"[0] first", *[b"[1] x"] * RATE_LIMIT]
    assert fold.deadline is None


def test_when_it_is_calm_again_lines_are_folded_again() -> None:
    fold = _fold(shown=2)
    fold.add(0, b"x\n" * RATE_LIMIT, 0.0)

    assert fold.add(0, b"y\n", 0.5) == [b"[0] y\n"]
    assert fold.add(0, b"z\n", 1.5) == []
    assert fold.add(1, b"z\n", 1.5) == [b"[0-1] z\n"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "0"),
        ([0, 1], "0-1"),
        ([3, 1, 2], "1-3"),
        ([0, 2, 4, 5], "0,2,4-5"),
        (range(450), "0-449"),
    ],
)
def test_ranges_of_ranks(ranks: list[int], text: str) -> None:
    assert rank_ranges(ranks) == text
