"""The real client of torch, one test body against torch's own servers and against ours.

Each test that has a `port` or a `store` runs with torch's libuv server, with its legacy server and
with ours. In what the legacy server is otherwise is listed (LEGACY_IS_OTHERWISE): there the test
must fail. What the libuv server does oddly (section 12 of the wire reference) is tested apart.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from . import wire
from .conftest import LIMIT_S, Client, poll_until, running_server

pytestmark = pytest.mark.torch
dist: Any = pytest.importorskip("torch.distributed")

LIMIT = timedelta(seconds=LIMIT_S)
SOON = timedelta(milliseconds=100)

#: Limits of the wire reference, section 7, and of ours.
KEYS, KEY_OCTETS, VALUE_OCTETS = 131_072, 8_192, 8 * 1024 * 1024

_NO_QUEUES = "it closes the connection on queue queries"
_NO_LIMITS = "it has no limits"
#: By test: why it fails with torch's legacy server (sections 3, 4 and 7 of the wire reference).
LEGACY_IS_OTHERWISE = {
    "test_check": _NO_QUEUES,
    "test_queues": _NO_QUEUES,
    "test_num_keys_counts_init_and_all_prefixes_but_no_queues": _NO_QUEUES,
    "test_queues_through_prefixes": _NO_QUEUES,
    "test_keys_may_be_any_text": _NO_QUEUES,
    "test_a_blocking_pop_gets_what_another_client_pushes": _NO_QUEUES,
    "test_one_item_for_each_who_pops": _NO_QUEUES,
    "test_an_item_is_not_kept_for_a_client_that_was_killed": _NO_QUEUES,
    "test_a_value_of_8_mib_goes_through_a_queue_and_a_larger_one_closes_the_connection": _NO_QUEUES,
    "test_a_longer_key_closes_the_connection": _NO_LIMITS,
    "test_a_larger_value_closes_the_connection": _NO_LIMITS,
    "test_one_key_more_closes_the_connection": _NO_LIMITS,
}


def connect(port: int, timeout: timedelta = LIMIT, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout, **options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that has a `port` runs with every server."""
    if "port" not in metafunc.fixturenames:
        return
    why = LEGACY_IS_OTHERWISE.get(metafunc.function.__name__)
    otherwise = [pytest.mark.xfail(strict=True, reason=why)] if why else []
    servers = ["libuv", pytest.param("legacy", marks=otherwise), "phalanx"]
    metafunc.parametrize("port", servers, indirect=True)


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "phalanx":
        with running_server() as server:
            yield server.address[1]
        return
    is_libuv = request.param == "libuv"
    reference = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=is_libuv
    )
    assert reference.libuvBackend is is_libuv
    yield reference.port


@pytest.fixture
def ours() -> Iterator[int]:
    with running_server() as server:
        yield server.address[1]


@pytest.fixture
def store(port: int) -> Any:
    return connect(port)


def test_every_operation_of_torchs_client_is_used_here() -> None:
    """So a torch that brings a new one is noticed."""
    used = {node.attr for node in ast.walk(ast.parse(Path(__file__).read_text()))
            if isinstance(node, ast.Attribute)}  # fmt: skip
    for kind in (dist.Store, dist.TCPStore, dist.PrefixStore):
        assert {name for name in dir(kind) if not name.startswith("_")} <= used


def test_what_the_legacy_server_does_otherwise_is_about_tests_of_this_file() -> None:
    assert LEGACY_IS_OTHERWISE.keys() <= globals().keys()


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


def test_values_may_hold_every_octet(store):
    octets = bytes(range(256))
    store.set("set", octets)
    store.append("appended", octets)
    store.append("appended", b"\0")
    store.multi_set(["multi"], [octets])
    stored = store.compare_set("compared", "", octets)

    assert stored == octets
    assert store.multi_get(["set", "multi", "compared"]) == [octets] * 3
    assert store.get("appended") == octets + b"\0"
    assert store.compare_set("compared", octets, b"\xff\0") == b"\xff\0"


@pytest.mark.parametrize(
    "key", ["", "/", "a/b//c/", " ", "\0", "a\nb", "Schlüssel", "鍵/🔑", "init/"]
)
def test_keys_may_be_any_text(store, port, key):
    """Each is its own, not taken for another that looks alike, and comes back as it was."""
    others = {"x", key + "/", "/" + key, key + "\0"}
    for other in others:
        store.set(other, "other")
    store.set(key, "v")
    store.queue_push(key, "item")

    assert store.get(key) == b"v"
    assert connect(port).check([key])
    assert sorted(store.list_keys()) == sorted({key, *others})
    assert store.num_keys() == len(others) + 1
    assert store.queue_pop(key) == b"item"
    assert store.delete_key(key)
    assert sorted(store.list_keys()) == sorted(others)


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


#: Calls that wait for what never comes; the number makes a barrier's name that was never used.
BLOCKING: dict[str, Callable[[Any, int], object]] = {
    "wait": lambda store, n: store.wait(["there", "never"]),
    "wait with a timeout": lambda store, n: store.wait(["never"], SOON),
    "get": lambda store, n: store.get("never"),
    "multi_get": lambda store, n: store.multi_get(["there", "never"]),
    "queue_pop": lambda store, n: store.queue_pop("never"),
    "barrier": lambda store, n: store.barrier(f"b{n}", 2),
    "barrier with a timeout": lambda store, n: store.barrier(f"b{n}", 2, SOON),
}


@pytest.mark.parametrize("call", BLOCKING)
def test_every_blocking_call_times_out_and_the_connection_stays_usable(store, call):
    store.set("there", "")
    if "timeout" not in call:
        store.set_timeout(SOON)
    for n in range(3):
        with pytest.raises(dist.DistStoreError, match="timeout"):
            BLOCKING[call](store, n)
    store.set_timeout(LIMIT)
    store.set("never", "late")

    assert store.get("never") == b"late"


def test_the_timeout_of_a_client_is_its_own_and_passes_through_prefixes(store, port):
    other = connect(port, timedelta(seconds=7))
    prefixed = dist.PrefixStore("p", other)
    prefixed.set_timeout(SOON)

    assert (store.timeout, other.timeout, prefixed.timeout) == (LIMIT, SOON, SOON)


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


def test_a_wait_on_many_keys_ends_with_the_last_of_them(store, port):
    other = connect(port)
    keys = [f"key{n}" for n in range(5000)]
    thread, outcome = in_thread(lambda: store.wait(keys, LIMIT))
    for first in range(0, 5000, 1000):
        assert not outcome
        other.multi_set(keys[first : first + 1000], [""] * 1000)
    finish(thread)

    assert outcome == [None]


def test_keys_that_were_there_once_count_for_those_who_wait(store, port):
    """One was there before the wait, one was set during it; both are deleted before the last."""
    store.set("a", "")
    waiter = Client(("127.0.0.1", port))  # raw: an answered PING shows that the server has the WAIT
    waiter.send(wire.wait(b"/a", b"/b", b"/c"))
    assert waiter.is_quiet()
    store.set("b", "")
    assert store.delete_key("a")
    assert store.delete_key("b")
    assert waiter.is_quiet()
    store.set("c", "")

    assert waiter.read(1) == b"\0"
    waiter.close()


def test_multi_set_and_multi_get(store):
    keys = [f"key{n}" for n in range(5000)]
    values = [f"value{n}" * (n % 50) for n in range(5000)]
    store.multi_set(keys, values)

    assert store.multi_get(keys[::-1]) == [value.encode() for value in values[::-1]]
    assert store.num_keys() == 5000


def test_a_multi_get_of_one_key_and_of_none(store):
    store.set("k", "v")

    assert store.multi_get(["k", "k"]) == [b"v", b"v"]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    store.wait([])
    assert store.num_keys() == 1


def test_large_values(store):
    value = b"0123456789abcdef" * (8 * 1024 * 1024 // 16)
    store.set("k", value)

    assert store.get("k") == value
    assert store.multi_get(["k", "k"]) == [value, value]


def with_reply(store: Any, call: Callable[[], object]) -> None:
    """SET and the like have no reply: either the call or the next one meets a closed connection."""
    call()
    store.check(["k"])


#: A key with the "/" that the client puts before each.
LONGEST_KEY = "k" * (KEY_OCTETS - 1)
#: By query: what to do with a key or a value that is as long as may be, or one octet longer.
WITH_A_KEY: dict[str, Callable[[Any, str], object]] = {
    "set": lambda store, key: store.set(key, "1"),
    "append": lambda store, key: store.append(key, "1"),
    "multi_set": lambda store, key: store.multi_set(["a", key], ["1", "1"]),
    "compare_set": lambda store, key: store.compare_set(key, "", "1"),
    "add": lambda store, key: store.add(key, 1),
    "check": lambda store, key: store.check([key]),
    "wait": lambda store, key: (store.set("a", ""), store.wait(["a", key], SOON)),
    "delete_key": lambda store, key: store.delete_key(key),
    "barrier": lambda store, key: store.barrier(key, 1),
}
WITH_A_VALUE: dict[str, Callable[[Any, bytes], object]] = {
    "set": lambda store, value: store.set("k", value),
    "append": lambda store, value: store.append("k", value),
    "multi_set": lambda store, value: store.multi_set(["a", "k"], ["", value]),
    "compare_set": lambda store, value: store.compare_set("k", "", value),
}


def closes(store: Any, call: Callable[[], object], port: int) -> None:
    """The connection is closed, others are not, and nothing was stored."""
    other = connect(port)
    with pytest.raises(dist.DistNetworkError):
        with_reply(store, call)

    assert other.num_keys() == 0 or other.list_keys() == ["a"]


@pytest.mark.parametrize("query", WITH_A_KEY)
def test_a_key_of_8192_octets_is_taken(store, query):
    if query == "wait":
        store.set(LONGEST_KEY, "1")
    with_reply(store, lambda: WITH_A_KEY[query](store, LONGEST_KEY))


@pytest.mark.parametrize("query", WITH_A_KEY)
def test_a_longer_key_closes_the_connection(store, port, query):
    closes(store, lambda: WITH_A_KEY[query](store, LONGEST_KEY + "k"), port)


@pytest.mark.parametrize("query", WITH_A_VALUE)
def test_a_value_of_8_mib_is_taken(store, query):
    value = b"v" * VALUE_OCTETS
    WITH_A_VALUE[query](store, value)

    assert store.get("k") == value


@pytest.mark.parametrize("query", WITH_A_VALUE)
def test_a_larger_value_closes_the_connection(store, port, query):
    value = b"v" * (VALUE_OCTETS + 1)
    closes(store, lambda: WITH_A_VALUE[query](store, value), port)


def test_a_value_of_8_mib_goes_through_a_queue_and_a_larger_one_closes_the_connection(store, port):
    value = b"v" * VALUE_OCTETS
    store.queue_push("q", value)
    assert store.queue_pop("q") == value

    closes(store, lambda: store.queue_push("q", value + b"v"), port)


def test_values_that_are_appended_to_may_grow_beyond_8_mib(store, port):
    half = b"v" * (VALUE_OCTETS // 2)
    for _ in range(3):
        store.append("k", half)

    assert store.get("k") == half * 3


#: By query with many keys: with as many as may be, and with one more. `multi_get` waits first.
WITH_MANY_KEYS: dict[str, Callable[[Any, list[str]], object]] = {
    "check": lambda store, keys: store.check(keys),
    "wait": lambda store, keys: store.wait(keys),
    "multi_get": lambda store, keys: store.multi_get(keys),
    "multi_set": lambda store, keys: store.multi_set(keys, ["v"] * len(keys)),
}


def many_keys(store: Any) -> list[str]:
    keys = [f"{n:06}" for n in range(KEYS)]
    for first in range(0, KEYS, 8192):
        store.multi_set(keys[first : first + 8192], ["v"] * 8192)
    return keys


def test_a_check_and_a_wait_may_have_131072_keys(store):
    keys = many_keys(store)

    assert store.check(keys)
    store.wait(keys)
    assert store.num_keys() == KEYS


@pytest.mark.parametrize("query", WITH_MANY_KEYS)
def test_one_key_more_closes_the_connection(store, port, query):
    store.set_timeout(SOON)
    keys = [""] * (KEYS + 1)
    closes(store, lambda: WITH_MANY_KEYS[query](store, keys), port)


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


def test_num_keys_counts_init_and_all_prefixes_but_no_queues(store, port):
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("k", "v")
    store.queue_push("q", "item")
    before = store.num_keys()
    connect(port, world_size=1)

    assert before == 1
    assert store.num_keys() == prefixed.num_keys() == 2
    assert store.list_keys() == ["p/k"]


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
    assert other.queue_len("q") == 0
    thread, outcome = in_thread(lambda: store.queue_pop("q"))
    other.queue_push("q", "item")
    finish(thread)

    assert outcome == [b"item"]


def test_one_item_for_each_who_pops(store, port):
    assert store.queue_len("q") == 0
    poppers = [connect(port) for _ in range(4)]
    threads = [in_thread(lambda popper=popper: popper.queue_pop("q")) for popper in poppers]
    for n in range(4):
        store.queue_push("q", str(n))
    for thread, _ in threads:
        finish(thread)

    got = [outcome[0] for _, outcome in threads if isinstance(outcome[0], bytes)]
    empty = [outcome for _, outcome in threads if isinstance(outcome[0], dist.QueueEmptyError)]
    left = [store.queue_pop("q") for _ in range(store.queue_len("q"))]
    assert len(left) == len(empty), "another may take the item between the wait and the pop"
    assert sorted(got + left) == [b"0", b"1", b"2", b"3"]


def test_all_operations_through_prefixes(store):
    """Each on the key with its prefix. A barrier is made of other queries there."""
    prefixed = dist.PrefixStore("p", store)
    prefixed.append("a", "x")
    prefixed.append("a", "y")
    prefixed.multi_set(["b", "c"], ["1", "2"])
    prefixed.barrier("bar", 1, LIMIT)

    assert prefixed.has_extended_api()
    assert prefixed.underlying_store.get("p/a") == b"xy"
    assert prefixed.add("b", 1) == store.add("p/b", 0) == 2
    assert prefixed.compare_set("c", "2", "3") == store.get("p/c") == b"3"
    assert prefixed.check(["a"])
    prefixed.wait(["a", "b"], LIMIT)
    assert prefixed.clone().get("a") == b"xy"
    assert "bar/last_member" in prefixed.list_keys()
    with pytest.raises(dist.DistStoreError, match="timeout"):
        prefixed.barrier("other", 2, SOON)


def test_queues_through_prefixes(store):
    prefixed = dist.PrefixStore("p", store)
    prefixed.queue_push("q", "1")

    assert store.queue_len("p/q") == prefixed.queue_len("q") == 1
    assert prefixed.queue_pop("q") == b"1"


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


def test_clones_outlive_what_they_were_made_of_and_are_made_again_and_again(port):
    store = connect(port)
    store.set("k", "v")
    for _ in range(20):
        store = store.clone()

    assert store.get("k") == b"v"
    assert (store.host, store.port) == ("127.0.0.1", port)


def test_threads_that_share_a_client_do_not_mix_their_replies(store):
    def work(number: int) -> list[bytes]:
        key, got = f"thread{number}", []
        for n in range(20):
            store.set(key, f"{number}:{n}" * number)
            store.add("n", 1)
            got.append(store.get(key))
        return got

    threads = [in_thread(lambda number=number: work(number)) for number in range(8)]
    for number, (thread, outcome) in enumerate(threads):
        finish(thread)
        assert outcome == [[f"{number}:{n}".encode() * number for n in range(20)]]

    assert store.add("n", 0) == 160


def test_many_clients_at_once(port):
    clients = [connect(port) for _ in range(100)]
    for client in clients:
        client.add("n", 1)

    assert clients[0].get("n") == b"100"


# Processes

#: Waits for what never comes, having said so.
WAITS = """
import datetime, sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), timeout=datetime.timedelta(seconds=60))
store.set("kept", "v")
print("waits", flush=True)
store.wait([sys.argv[2]])
"""
#: A rank of a group whose ranks meet in the store once more when the group is there.
JOINS = """
import sys
import torch.distributed as dist
rank = int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
print("joined")
"""


def python(*words: str) -> Any:
    """A process that asks no DNS either."""
    environ = {**os.environ, "RES_OPTIONS": "attempts:0"}
    return subprocess.Popen(
        [sys.executable, "-c", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_client_killed_in_mid_wait_is_forgotten_and_its_keys_stay(store, port):
    others = [connect(port) for _ in range(3)]
    with python(WAITS, str(port), "k") as victim:
        assert victim.stdout.readline() == b"waits\n"
        threads = [in_thread(lambda other=other: other.wait(["k"], LIMIT)) for other in others]
        poll_until(lambda: sleeps(victim.pid))
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate()
    assert store.get("kept") == b"v"
    store.set("k", "")
    for thread, outcome in threads:
        finish(thread)
        assert outcome == [None]

    assert store.num_keys() == 2


def test_an_item_is_not_kept_for_a_client_that_was_killed(store, port):
    """It waited longest: a server that had not forgotten it would wake nobody else."""
    other = connect(port)
    assert other.queue_len("q") == 0
    with python(WAITS, str(port), "q") as victim:
        assert victim.stdout.readline() == b"waits\n"
        poll_until(lambda: sleeps(victim.pid))
        thread, outcome = in_thread(lambda: other.queue_pop("q"))
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate()
    for _ in range(20):  # turns of the server, in which it sees that the connection is closed
        store.add("turns", 1)
    store.queue_push("q", "item")
    finish(thread)

    assert outcome == [b"item"]


def test_a_gloo_group_of_two_processes_with_torchs_barrier_at_init(port):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_DIST_INIT_BARRIER", "1")
        ranks = [python(JOINS, str(port), str(rank)) for rank in range(2)]
    outputs = [rank.communicate(timeout=100) for rank in ranks]

    assert [out for out, _ in outputs] == [b"joined\n"] * 2, outputs
    met = [key for key in connect(port).list_keys() if key.endswith(":last_worker")]
    assert len(met) == 1, "the barrier was made"


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


def test_multi_get_and_multi_set_may_have_131072_keys(ours):
    """torch's server takes more than a minute for each: it reads from the start again and again."""
    store = connect(ours)
    keys = many_keys(store)
    store.multi_set(keys, keys)

    assert store.multi_get(keys) == [key.encode() for key in keys]


# These tests themselves

#: With the only name server here, whom nobody hears: how many questions does "$@" ask it?
COUNTS_QUESTIONS = """
import select, socket, subprocess, sys
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.bind(("127.0.0.1", 53))
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
questions = 0
while select.select([resolver], [], [], 0)[0]:
    resolver.recv(4096)
    questions += 1
print(questions, done.returncode, done.stdout[-3000:])
"""
OWN_RESOLVER = """
ip link set lo up && echo nameserver 127.0.0.1 > "$0" || exit 1
mount --bind "$0" /etc/resolv.conf || exit 1
exec "$@"
"""


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "asks", [False, True], ids=["these tests", "a process that looks a name up"]
)
def test_nobody_here_asks_dns(tmp_path, asks):
    """So no test here waits for a resolver, in this process or in those it starts."""
    chosen = ("-k", "killed_in_mid_wait", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", __file__, *chosen]
    if asks:
        command = [sys.executable, "-c", "import socket; socket.gethostbyname('some.host')"]
    namespaces = ("unshare", "--net", "--mount", "sh", "-c", OWN_RESOLVER, tmp_path / "resolv.conf")
    done = subprocess.run(
        [*namespaces, sys.executable, "-c", COUNTS_QUESTIONS, *command],
        env={**os.environ, **({"RES_OPTIONS": "timeout:1 attempts:1"} if asks else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    questions, code, *_ = done.stdout.split()

    assert (int(questions) > 0) is asks, done.stdout
    assert (int(code) == 0) is not asks, done.stdout
