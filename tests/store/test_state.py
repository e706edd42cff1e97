"""What the store remembers and whom it wakes: sections 4 and 5 of the wire reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.store.state import NotANumberError, StoreState


@pytest.fixture
def state():
    state = StoreState()
    yield state
    state.validate()


def test_connection_numbers_are_never_given_twice(state):
    first = state.connect()
    state.forget_wait(first)

    assert state.connect() != first


def test_a_missing_key_reads_as_the_empty_value(state):
    assert state.get(b"k") == b""


@pytest.mark.parametrize(
    ("present", "expected", "told", "stored"),
    [
        (None, b"", b"new", b"new"),
        (None, b"x", b"x", None),
        (b"x", b"x", b"new", b"new"),
        (b"", b"", b"new", b"new"),
        (b"y", b"x", b"y", b"y"),
        (b"y", b"", b"y", b"y"),
    ],
)
def test_compare_set_stores_only_where_the_value_is_the_expected(
    state, present, expected, told, stored
):
    if present is not None:
        state.set(b"k", present)

    assert state.compare_set(b"k", expected, b"new")[0] == told
    assert state.has_all([b"k"]) == (stored is not None)
    assert state.get(b"k") == (stored or b"")


def test_compare_set_that_stores_nothing_wakes_nobody(state):
    state.wait(1, [b"k"])

    assert not state.compare_set(b"k", b"x", b"new")[1]
    assert list(state.compare_set(b"k", b"", b"new")[1]) == [1]


@pytest.mark.parametrize(
    ("value", "delta", "total"),
    [
        (b"5", 0, 5),
        (b"-5", 3, -2),
        (b" \t\n\v\f\r+7", 1, 8),
        (b"12ab", 1, 13),
        (b"1_0", 1, 2),
        (b"0x10", 1, 1),
        (b"7 ", 1, 8),
        (b"0" * 10_000 + b"5", 1, 6),
        (b"9223372036854775807", 1, -(2**63)),
        (b"-9223372036854775808", -1, 2**63 - 1),
        (b"4611686018427387904", 2**62, -(2**63)),
    ],
)
def test_add_reads_numbers_as_c_does_and_wraps(state, value, delta, total):
    state.set(b"k", value)

    assert state.add(b"k", delta)[0] == total
    assert state.get(b"k") == str(total).encode()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"-",
        b"+ 5",
        b"abc",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1" + b"0" * 19,
        b"9" * 9999,
    ],
)
def test_add_and_barrier_refuse_what_is_no_64_bit_number_and_change_nothing(state, value):
    state.set(b"k", value)

    with pytest.raises(NotANumberError):
        state.add(b"k", 1)
    with pytest.raises(NotANumberError):
        state.barrier(1, b"k", 2)
    assert state.get(b"k") == value


def test_add_of_nothing_creates_the_counter(state):
    state.add(b"n", 0)

    assert state.get(b"n") == b"0"


def test_delete_removes_the_key_but_not_the_queue_of_that_name(state):
    state.set(b"k", b"v")
    state.queue_push(b"k", b"item")

    assert state.delete(b"k") is True
    assert state.delete(b"k") is False
    assert state.queue_length(b"k") == 1


def test_queues_are_no_keys_but_count_for_check(state):
    state.queue_push(b"q", b"item")

    assert state.number_of_keys() == 0
    assert state.keys() == []
    assert state.has_all([b"q"])


def test_an_emptied_queue_is_not_there(state):
    state.queue_push(b"q", b"1")
    state.queue_push(b"q", b"2")

    assert [state.queue_pop(b"q") for _ in range(3)] == [(2, b"1"), (1, b"2"), (0, b"")]
    assert not state.has_all([b"q"])


def test_a_wait_for_nothing_or_for_what_is_there_ends_at_once(state):
    state.set(b"k", b"")

    assert state.wait(1, [])
    assert state.wait(1, [b"k", b"k"])


def test_a_waiter_is_woken_once_by_the_last_of_its_keys(state):
    state.set(b"there", b"")
    state.wait(1, [b"a", b"b", b"a", b"there"])

    assert list(state.set(b"a", b"")) == []
    assert list(state.set(b"a", b"")) == []
    assert list(state.append(b"b", b"x")) == [1]
    assert list(state.set(b"b", b"")) == []


def test_a_key_set_and_deleted_meanwhile_counts_as_come(state):
    state.wait(1, [b"a", b"b"])
    state.set(b"a", b"")
    state.delete(b"a")

    assert list(state.set(b"b", b"")) == [1]


def test_every_way_to_make_a_key_appear_wakes(state):
    for n, appear in enumerate(
        [
            lambda k: state.set(k, b"1"),
            lambda k: state.append(k, b"1"),
            lambda k: state.add(k, 1)[1],
            lambda k: state.compare_set(k, b"", b"1")[1],
            lambda k: state.multi_set([(b"other", b""), (k, b"1"), (k, b"2")]),
            lambda k: state.queue_push(k, b"1"),
            lambda k: state.barrier(99, k, 1)[1],
        ]
    ):
        key = b"k%d" % n
        state.wait(n, [key])

        assert list(appear(key)) == [n]


def test_multi_set_has_stored_all_pairs_when_it_wakes(state):
    state.wait(1, [b"a"])

    assert list(state.multi_set([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])) == [1]
    assert (state.get(b"a"), state.get(b"b")) == (b"3", b"2")


def test_a_push_wakes_only_the_longest_waiter(state):
    for waiter in (7, 3, 5):
        state.wait(waiter, [b"q"])

    assert list(state.queue_push(b"q", b"1")) == [7]
    assert list(state.queue_push(b"q", b"2")) == [3]


def test_a_push_never_answers_a_later_wait_for_something_else(state):
    """The reference server keeps a woken connection on the queue's list (section 12)."""
    state.wait(1, [b"q"])
    state.queue_push(b"q", b"1")
    state.queue_pop(b"q")
    state.wait(1, [b"unrelated"])

    assert list(state.queue_push(b"q", b"2")) == []


def test_a_second_wait_replaces_the_first(state):
    state.wait(1, [b"a"])
    state.wait(1, [b"b"])

    assert list(state.set(b"a", b"")) == []
    assert list(state.set(b"b", b"")) == [1]


def test_a_forgotten_wait_is_not_woken(state):
    state.wait(1, [b"a", b"b"])
    state.wait(2, [b"a"])
    state.forget_wait(1)
    state.forget_wait(1)

    assert list(state.set(b"a", b"")) == [2]


def test_leaving_costs_the_leavers_own_keys_not_all_waiting_lists():
    touched = 0

    class Counting(dict):  # type: ignore[type-arg]
        def __getitem__(self, key):
            nonlocal touched
            touched += 1
            return super().__getitem__(key)

        def __iter__(self):
            raise AssertionError("somebody walks over all keys")

        items = values = keys = __iter__  # type: ignore[assignment]

    state = StoreState()
    state._waiters = Counting()
    for waiter in range(1000):
        state.wait(waiter, [b"%d" % waiter])
    state.forget_wait(500)

    assert touched == 1


def test_a_barrier_opens_for_all_when_the_last_one_comes(state):
    assert state.barrier(1, b"b", 3) == (False, ())
    assert state.barrier(2, b"b", 3) == (False, ())
    complete, woken = state.barrier(3, b"b", 3)

    assert complete
    assert list(woken) == [1, 2]
    assert state.get(b"b") == b"3"


def test_who_left_a_barrier_has_been_counted_all_the_same(state):
    state.barrier(1, b"b", 2)
    state.forget_wait(1)

    assert state.barrier(2, b"b", 2)[0]


@pytest.mark.parametrize("size", [1, 0, -1])
def test_a_barrier_of_one_or_less_opens_at_once(state, size):
    assert state.barrier(1, b"b", size)[0]


def test_setting_a_barriers_key_releases_those_who_wait(state):
    state.barrier(1, b"b", 3)

    assert list(state.set(b"b", b"0")) == [1]


class Obvious:
    """The oracle: lists, scanned from end to end."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, list[bytes]] = {}
        self.waits: list[tuple[int, list[bytes]]] = []

    def forget_wait(self, who: int) -> None:
        self.waits = [wait for wait in self.waits if wait[0] != who]

    def wait(self, who: int, keys: list[bytes]) -> bool:
        self.forget_wait(who)
        missing = [k for k in set(keys) if k not in self.values and not self.queues.get(k)]
        if missing:
            self.waits.append((who, missing))
        return not missing

    def appear(self, key: bytes, only_one: bool = False) -> list[int]:
        woken = []
        for who, keys in list(self.waits):
            if key in keys:
                keys.remove(key)
                if not keys:
                    woken.append(who)
                    self.forget_wait(who)
                if only_one:
                    break
        return woken

    def set(self, key: bytes, value: bytes) -> list[int]:
        self.values[key] = value
        return self.appear(key)

    def delete(self, key: bytes) -> bool:
        return self.values.pop(key, None) is not None

    def queue_push(self, key: bytes, value: bytes) -> list[int]:
        self.queues.setdefault(key, []).append(value)
        return self.appear(key, only_one=True)

    def queue_pop(self, key: bytes) -> tuple[int, bytes]:
        queue = self.queues.get(key, [])
        return len(queue), queue.pop(0) if queue else b""

    def barrier(self, who: int, key: bytes, size: int) -> tuple[bool, list[int]]:
        self.forget_wait(who)
        count = int(self.values.get(key, b"0")) + 1
        self.values[key] = str(count).encode()
        if count >= size:
            return True, self.appear(key)
        self.waits.append((who, [key]))
        return False, []


KEY = st.sampled_from([b"a", b"b", b"c"])
WHO = st.integers(1, 4)
NUMBER = st.sampled_from([b"0", b"7"])
OPERATIONS = st.one_of(
    st.tuples(st.just("set"), KEY, NUMBER),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("queue_push"), KEY, NUMBER),
    st.tuples(st.just("queue_pop"), KEY),
    st.tuples(st.just("wait"), WHO, st.lists(KEY, max_size=4)),
    st.tuples(st.just("forget_wait"), WHO),
    st.tuples(st.just("barrier"), WHO, KEY, st.integers(0, 4)),
)


def plain(result: Any) -> Any:
    """Sequences of one kind, so that a tuple of the woken equals a list of them."""
    return [plain(item) for item in result] if isinstance(result, list | tuple) else result


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_any_sequence_of_operations_gives_what_the_obvious_code_gives(operations):
    state, oracle = StoreState(), Obvious()

    for name, *arguments in operations:
        assert plain(getattr(state, name)(*arguments)) == plain(getattr(oracle, name)(*arguments))
        state.validate()
