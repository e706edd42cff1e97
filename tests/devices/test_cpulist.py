"""Lists of CPUs as the kernel writes them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.devices.cpulist import format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        ("0\n", {0}),
        ("\n", set()),
        ("", set()),
        (" 4 - 5 , 7 ", {4, 5, 7}),
        ("3,3,2-4", {2, 3, 4}),
    ],
)
def test_a_list_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text", ["a", "3-1", "-1", "1-", "0-99999999999", "0x3", "1;2", "²", "1_0"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not "):
        parse_cpu_list(text)


@given(st.sets(st.integers(0, 300)))
def test_what_is_written_is_read_again(cpus: set[int]) -> None:
    text = format_cpu_list(cpus)

    assert parse_cpu_list(text) == cpus
    runs = [part.partition("-") for part in text.split(",") if part]
    ends = [(int(low), int(high or low)) for low, _, high in runs]
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ends)), "as short as can be"


@given(st.text("0123456789,- x\n", max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        assert all(cpu >= 0 for cpu in parse_cpu_list(text))
    except ValueError:
        pass
