"""The real client of torch, one test body against torch's own server and against ours.

What the reference server does oddly (section 12 of the wire reference) is tested apart, below.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from .conftest import LIMIT_S, running_server

pytestmark = pytest.mark.torch
dist: Any = pytest.importorskip("torch.distributed")

LIMIT = timedelta(seconds=LIMIT_S)
SOON = timedelta(milliseconds=100)


def connect(port: int, timeout: timedelta = LIMIT, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout, **options)


@pytest.fixture(params=["torch", "phalanx"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "torch":
        reference = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield reference.port
    else:
        with running_server() as server:
            yield server.address[1]


@pytest.fixture
def ours() -> Iterator[int]:
    with running_server() as server:
        yield server.address[1]


@pytest.fixture
def store(port: int) -> Any:
    return connect(port)


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Runs a blocking call (the client releases the interpreter); the list gets its outcome."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def finish(thread: threading.Thread) -> None:
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_set_and_get(store):
    store.set("k", "v")
    store.set("k", "v2")
    store.set("", b"\0\xff")

    assert store.get("k") == b"v2"
    assert store.get("") == b"\0\xff"


def test_add_counts_up_down_and_from_text(store):
    store.set("text", "40")

    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.add("n", 0) == -2
    assert store.get("n") == b"-2"
    assert store.add("text", 2) == 42


def test_add_on_text_that_is_no_number_closes_the_connection(store):
    store.set("text", "abc")

    with pytest.raises(dist.DistNetworkError):
        store.add("text", 1)


def test_append(store):
    store.append("k", "ab")
    store.append("k", "cd")

    assert store.get("k") == b"abcd"


def test_compare_set(store):
    assert store.compare_set("k", "x", "y") == b"x"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "one") == b"one"
    assert store.compare_set("k", "other", "two") == b"one"
    assert store.compare_set("k", "one", "two") == b"two"
    assert store.get("k") == b"two"


def test_check(store):
    store.set("a", "")
    store.queue_push("q", "item")

    assert store.check(["a", "q"])
    assert not store.check(["a", "b"])
    assert store.check([])


def test_wait_ends_when_another_client_has_set_all_keys(store, port):
    other = connect(port)
    thread, outcome = in_thread(lambda: store.wait(["a", "b"], LIMIT))
    other.set("a", "")
    other.add("b", 1)
    finish(thread)

    assert outcome == [None]


def test_a_wait_times_out_at_the_client_and_the_connection_stays_usable(store):
    for _ in range(3):
        with pytest.raises(dist.DistStoreError, match="wait timeout"):
            store.wait(["never"], SOON)
    store.set("k", "v")

    assert store.get("k") == b"v"


def test_timeouts_that_cross_wakes_leave_the_stream_whole(store, port):
    """Waits that end about when the key comes: whichever is first, the next reply is right."""
    other = connect(port)
    for n in range(60):
        key = f"k{n}"
        thread, outcome = in_thread(
            lambda key=key, n=n: store.wait([key], timedelta(milliseconds=1 + n % 3))
        )
        other.set(key, str(n))
        finish(thread)

        assert outcome == [None] or isinstance(outcome[0], dist.DistStoreError)
        assert store.get(key) == str(n).encode()


def test_multi_set_and_multi_get(store):
    keys = [f"key{n}" for n in range(5000)]
    values = [f"value{n}" * (n % 50) for n in range(5000)]
    store.multi_set(keys, values)

    assert store.multi_get(keys[::-1]) == [value.encode() for value in values[::-1]]
    assert store.num_keys() == 5000


def test_large_values(store):
    value = b"0123456789abcdef" * (8 * 1024 * 1024 // 16)
    store.set("k", value)

    assert store.get("k") == value
    assert store.multi_get(["k", "k"]) == [value, value]


def set_and_get(store: Any, value: bytes) -> None:
    """SET has no reply: either call may meet the closed connection."""
    store.set("k", value)
    store.get("k")


def test_a_value_over_the_limit_closes_the_connection(store, port):
    with pytest.raises(dist.DistNetworkError):
        set_and_get(store, b"v" * (8 * 1024 * 1024 + 1))

    assert not connect(port).check(["k"])


def test_delete_key_and_num_keys(store):
    store.set("a", "")
    store.set("b", "")

    assert store.num_keys() == 2
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert store.num_keys() == 1


def test_init_is_an_ordinary_key_that_clients_with_a_world_size_count_up(port):
    store = connect(port, world_size=2)
    connect(port, world_size=2)

    assert store.num_keys() == 1
    assert store.list_keys() == []


def test_queues(store):
    store.queue_push("q", "1")
    store.queue_push("q", "2")

    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"1"
    assert store.queue_pop("q", block=False) == b"2"
    assert store.queue_len("q") == 0
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", block=False)


def test_a_blocking_pop_gets_what_another_client_pushes(store, port):
    other = connect(port)
    thread, outcome = in_thread(lambda: store.queue_pop("q"))
    other.queue_push("q", "item")
    finish(thread)

    assert outcome == [b"item"]


def test_list_keys_through_prefixes(store):
    prefixed = dist.PrefixStore("outer", dist.PrefixStore("inner/", store))
    prefixed.set("k", "v")
    store.set("plain", "v")

    assert sorted(store.list_keys()) == ["inner//outer/k", "plain"]
    assert prefixed.list_keys() == ["k"]
    assert prefixed.get("k") == store.get("inner//outer/k") == b"v"
    assert prefixed.num_keys() == 2
    assert prefixed.multi_get(["k"]) == [b"v"]
    assert prefixed.delete_key("k")


def test_a_barrier_opens_when_all_have_come(store, port):
    others = [connect(port) for _ in range(2)]
    threads = [in_thread(lambda other=other: other.barrier("b", 3, LIMIT)) for other in others]
    store.barrier("b", 3, LIMIT)
    for thread, outcome in threads:
        finish(thread)
        assert outcome == [None]

    assert store.get("b") == b"3"


def test_a_barrier_times_out_and_counts_those_who_left(store, port):
    with pytest.raises(dist.DistStoreError):
        store.barrier("b", 2, SOON)

    connect(port).barrier("b", 2, LIMIT)
    assert store.get("b") == b"2"


def test_a_clone_is_a_connection_of_its_own(store):
    clone = store.clone()
    thread, outcome = in_thread(lambda: clone.get("k"))
    store.set("k", "v")
    finish(thread)

    assert outcome == [b"v"]


def test_many_clients_at_once(port):
    """Few: torch's server looks each client's name up, which can take 5 s."""
    clients = [connect(port) for _ in range(10)]
    for client in clients:
        client.add("n", 1)

    assert clients[0].get("n") == b"10"


# Ours alone: where the reference server is odd


def test_compare_set_that_stores_nothing_leaves_waiters_waiting(ours):
    store, other = connect(ours), connect(ours)
    thread, outcome = in_thread(lambda: store.wait(["k"], SOON))
    other.compare_set("k", "x", "y")
    finish(thread)

    assert isinstance(outcome[0], dist.DistStoreError)


def test_a_push_does_not_answer_an_unrelated_wait_of_a_former_popper(ours):
    store, other = connect(ours), connect(ours)
    thread, outcome = in_thread(lambda: store.queue_pop("q"))
    other.queue_push("q", "1")
    finish(thread)
    assert outcome == [b"1"]
    thread, outcome = in_thread(lambda: store.wait(["unrelated"], SOON))
    other.queue_push("q", "2")
    finish(thread)

    assert isinstance(outcome[0], dist.DistStoreError)


def test_our_server_gets_a_gloo_group_of_two_going(ours):
    """Two process groups of one process, each with its own connection, as two ranks would."""
    threads = []
    for rank in range(2):
        store = dist.PrefixStore("default_pg/0/", connect(ours, world_size=2))
        make = lambda store=store, rank=rank: dist.ProcessGroupGloo(store, rank, 2, LIMIT)  # noqa: E731
        threads.append(in_thread(make))
    for thread, outcome in threads:
        finish(thread)
        assert isinstance(outcome[0], dist.ProcessGroupGloo)
