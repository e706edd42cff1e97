"""Whose an orphan is, decided from what it shows, what was found before, and who has just died."""

from __future__ import annotations

import pytest

from phalanx.workers.orphans import owners_of


@pytest.mark.parametrize(
    ("claim", "known", "alive", "died", "owner"),
    [
        pytest.param(1, {}, {0, 1}, {0}, 1, id="what it shows counts before who has just died"),
        pytest.param(None, {}, {1}, {0}, 0, id="else the worker that has just died"),
        pytest.param(None, {}, {2}, {0, 2}, 2, id="of several rather one that lives"),
        pytest.param(None, {}, {0, 1}, set(), None, id="else nobody can tell"),
        pytest.param(None, {70: None}, {1}, {0}, None, id="what was seen before stays unknown"),
        pytest.param(1, {70: 0}, {1}, set(), 0, id="what was found before stays"),
    ],
)
def test_owner_of_an_orphan(
    claim: int | None,
    known: dict[int, int | None],
    alive: set[int],
    died: set[int],
    owner: int | None,
) -> None:
    assert owners_of({70: claim}, known, alive, died) == {70: owner}


def test_orphans_that_are_gone_are_forgotten() -> None:
    assert owners_of({}, {70: 0}, {0}, set()) == {}
