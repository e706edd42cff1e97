"""The protocol of one connection: any octets may arrive, only a ProtocolError may result."""

from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.store import parser
from phalanx.store.parser import Connection, OldClientError, ProtocolError, StrangerError
from phalanx.store.state import StoreState

from . import wire


class Store:
    """A state, its connections, and what was sent to each, in order."""

    def __init__(self) -> None:
        self.state = StoreState()
        self.outputs: list[tuple[int, bytes]] = []

    def connect(self, greeting: bytes = wire.GREETING) -> Connection:
        connection = Connection(self.state, self.outputs)
        connection.feed(greeting)
        return connection

    def take(self, connection: Connection) -> bytes:
        """All octets owed to `connection` since the last call."""
        octets = b"".join(o for who, o in self.outputs if who == connection.id)
        self.outputs[:] = [entry for entry in self.outputs if entry[0] != connection.id]
        return octets

    def ask(self, connection: Connection, query: bytes) -> bytes:
        connection.feed(query)
        return self.take(connection)


@pytest.fixture
def store():
    store = Store()
    yield store
    store.state.validate()


def feed_all(connection: Connection, pieces: list[bytes]) -> None:
    for piece in pieces:
        connection.feed(piece)


def reason_of(error: type[ProtocolError], pieces: list[bytes]) -> str:
    connection = Connection(StoreState(), [])
    with pytest.raises(ProtocolError) as caught:
        feed_all(connection, pieces)
    assert type(caught.value) is error
    return str(caught.value)


def octets_of(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


# Set-up


def test_the_greeting_has_no_reply_and_ping_echoes_the_nonce(store):
    client = store.connect()

    assert store.ask(client, wire.ping(0xDEADBEEF)) == struct.pack("<I", 0xDEADBEEF)
    assert client.greeted


@pytest.mark.parametrize("cut", range(1, 5))
def test_the_greeting_may_be_cut_anywhere(store, cut):
    client = store.connect(wire.GREETING[:cut])
    assert not client.greeted

    assert store.ask(client, wire.GREETING[cut:] + wire.ping(1)) == b"\x01\0\0\0"


@pytest.mark.parametrize(
    "octets",
    [
        wire.OLD_CLIENT,
        b"\x00" + wire.text(b"/default_pg/0//0") + wire.text(b"v"),  # SET
        b"\x02" + wire.text(b"/k"),  # GET
        b"\x05" + wire.texts([b"/k"]),  # WAIT
        b"\x07" + wire.text(b"/k"),  # WATCH_KEY of 2.0, DELETE_KEY of 2.1
        b"\x06",  # GETNUMKEYS, the one query that is shorter than the greeting
    ],
)
def test_clients_of_torch_2_1_and_older_are_named_as_such_however_cut(octets):
    whole = reason_of(OldClientError, [octets])

    assert "torch 2.1 or older" in whole
    assert reason_of(OldClientError, octets_of(octets)) == whole


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        bytes.fromhex("16 03 01 02 00 01"),  # TLS
        bytes.fromhex("00 CE F7 85 3D"),
        bytes.fromhex("03 FF FF FF FF FF"),
        b"\x0d" + wire.u64(1),
    ],
)
def test_what_was_never_a_client_is_refused_with_its_first_octets(octets):
    whole = reason_of(StrangerError, [octets])

    assert whole.startswith("not a torch client")
    assert reason_of(StrangerError, octets_of(octets)) == whole


def test_nothing_of_a_stranger_is_kept_or_executed(store):
    stranger = Connection(store.state, store.outputs)
    with pytest.raises(ProtocolError):
        stranger.feed(wire.set_(b"k", b"v"))

    assert store.state.keys() == []


def test_a_second_greeting_is_refused(store):
    with pytest.raises(ProtocolError, match="second VALIDATE"):
        store.connect().feed(wire.GREETING)


# Queries


REPLIES = [
    (wire.set_(b"a", b"1"), b""),
    (wire.get(b"a"), wire.text(b"1")),
    (wire.get(b"missing"), wire.text(b"")),
    (wire.set_(b"", b""), b""),
    (wire.get(b""), wire.text(b"")),
    (wire.add(b"n", 5), wire.i64(5)),
    (wire.add(b"n", -7), wire.i64(-2)),
    (wire.get(b"n"), wire.text(b"-2")),
    (wire.compare_set(b"c", b"", b"x"), wire.text(b"x")),
    (wire.compare_set(b"c", b"y", b"z"), wire.text(b"x")),
    (wire.check(), b"\0"),
    (wire.check(b"a", b"n"), b"\0"),
    (wire.check(b"a", b"missing"), b"\1"),
    (wire.wait(), b"\0"),
    (wire.wait(b"a", b"c"), b"\0"),
    (wire.append(b"a", b"23"), b""),
    (wire.multi_set([(b"m1", b"v" * 2000), (b"m2", b"")]), b""),
    (wire.multi_set([]), b""),
    (wire.multi_get(b"m1", b"a", b"nil"), wire.text(b"v" * 2000) + wire.text(b"123") + wire.u64(0)),
    (wire.multi_get(), b""),
    (wire.NUMBER_OF_KEYS, wire.i64(6)),
    (wire.delete(b"m1"), wire.i64(1)),
    (wire.delete(b"m1"), wire.i64(0)),
    (wire.queue_push(b"q", b"i1"), b""),
    (wire.queue_push(b"q", b"i2"), b""),
    (wire.queue_length(b"q"), wire.i64(2)),
    (wire.queue_pop(b"q"), wire.i64(2) + wire.text(b"i1")),
    (wire.queue_pop(b"none"), wire.i64(0)),
    (wire.LIST_KEYS, wire.i64(5) + b"".join(map(wire.text, [b"a", b"", b"n", b"c", b"m2"]))),
    (wire.wait(b"later"), b""),
    (wire.CANCEL_WAIT, b"\1"),
    (wire.CANCEL_WAIT, b"\1"),
    (wire.barrier(b"b", 2), b""),
    (wire.add(b"b", 0), b"\0" + wire.i64(1)),
    (wire.barrier(b"b", 2), b"\0"),
    (wire.ping(7), b"\7\0\0\0"),
]
ALL_QUERIES = b"".join(query for query, _ in REPLIES)
ALL_REPLIES = b"".join(reply for _, reply in REPLIES)


def test_each_query_is_answered_to_the_octet(store):
    client = store.connect()

    for query, reply in REPLIES:
        assert (query, store.ask(client, query)) == (query, reply)


def test_the_example_of_the_reference(store):
    query = bytes.fromhex("04 0200000000000000 2F6E 0500000000000000")
    client = store.connect()

    assert store.ask(client, query) == bytes.fromhex("0500000000000000")
    assert store.state.get(b"/n") == b"5"


def test_a_stream_fed_octet_by_octet_gives_the_same_replies(store):
    client = store.connect()
    for octet in octets_of(ALL_QUERIES):
        client.feed(octet)

    assert store.take(client) == ALL_REPLIES


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, len(ALL_QUERIES)), max_size=30).map(sorted))
def test_a_stream_cut_anywhere_gives_the_same_replies(cuts):
    store = Store()
    client = store.connect()
    for start, stop in zip([0, *cuts], [*cuts, len(ALL_QUERIES)], strict=True):
        client.feed(ALL_QUERIES[start:stop])

    assert store.take(client) == ALL_REPLIES


@settings(max_examples=150, deadline=None)
@given(st.integers(19, 255), st.binary(max_size=40), st.booleans())
def test_rubbish_after_good_queries_spoils_none_of_their_replies(first, rubbish, bytewise):
    store = Store()
    client = store.connect()
    data = ALL_QUERIES + bytes([first]) + rubbish
    with pytest.raises(ProtocolError, match="query type"):
        feed_all(client, octets_of(data) if bytewise else [data])

    assert store.take(client) == ALL_REPLIES


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([query for query, _ in REPLIES]),
            st.integers(0, 20).map(lambda n: bytes([n])),
            st.sampled_from([0, 1, 2, 8192, 2**63, 2**64 - 1]).map(wire.u64),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_any_octets_end_in_replies_or_in_a_protocol_error(pieces, greeted):
    store = Store()
    client = Connection(store.state, store.outputs)
    with contextlib.suppress(ProtocolError):
        feed_all(client, [wire.GREETING, *pieces] if greeted else pieces)
    client.close()

    store.state.validate()
    assert not store.state._awaited


# Waits and wakes


def test_a_wake_goes_to_the_connection_that_waits(store):
    waiter, setter = store.connect(), store.connect()

    assert store.ask(waiter, wire.wait(b"a", b"b")) == b""
    setter.feed(wire.set_(b"a", b"") + wire.set_(b"b", b""))
    assert store.outputs == [(waiter.id, b"\0")]


def test_a_query_that_wakes_its_own_connection_is_answered_after_the_wait(store):
    client = store.connect()

    replies = store.ask(client, wire.wait(b"n") + wire.add(b"n", 3) + wire.ping(9))
    assert replies == b"\0" + wire.i64(3) + b"\x09\0\0\0"


def test_a_wake_that_crosses_the_cancel_gives_both_octets(store):
    waiter, setter = store.connect(), store.connect()
    waiter.feed(wire.wait(b"k"))
    setter.feed(wire.set_(b"k", b""))

    assert store.ask(waiter, wire.CANCEL_WAIT) == b"\0\1"


def test_a_cancelled_wait_is_not_woken(store):
    waiter, setter = store.connect(), store.connect()
    waiter.feed(wire.wait(b"k") + wire.CANCEL_WAIT)
    setter.feed(wire.set_(b"k", b""))

    assert store.take(waiter) == b"\1"


def test_a_closed_connection_is_not_woken_and_its_barrier_count_stands(store):
    leaver, stayer = store.connect(), store.connect()
    leaver.feed(wire.barrier(b"b", 2))
    leaver.close()

    assert store.ask(stayer, wire.barrier(b"b", 2)) == b"\0"
    assert store.take(leaver) == b""


def test_bad_numbers_close_the_connection_with_the_key_in_the_reason(store):
    client = store.connect()
    client.feed(wire.set_(b"/text", b"abc"))

    with pytest.raises(ProtocolError, match=r"ADD on b'/text'.*not a number"):
        store.connect().feed(wire.add(b"/text", 1))
    with pytest.raises(ProtocolError, match=r"BARRIER on b'/text'.*not a number"):
        store.connect().feed(wire.barrier(b"/text", 1))


# Many keys


def test_a_multi_set_in_pieces_takes_effect_only_when_it_is_whole(store):
    client, other = store.connect(), store.connect()
    query = wire.multi_set([(b"k%d" % n, b"v") for n in range(100)])
    client.feed(query[:-1])

    assert store.ask(other, wire.NUMBER_OF_KEYS) == wire.i64(0)
    client.feed(query[-1:])
    assert store.ask(other, wire.NUMBER_OF_KEYS) == wire.i64(100)


def test_a_closed_half_multi_set_leaves_nothing_behind(store):
    client = store.connect()
    client.feed(wire.multi_set([(b"k", b"v"), (b"l", b"v")])[:-1])
    client.close()

    assert store.state.keys() == []


def seconds_for_multi_set(keys: int) -> float:
    """The best of three for a MULTI_SET cut after each field, as the client cuts it."""
    pieces = [b"\x0b" + wire.u64(keys)]
    for n in range(keys):
        pieces += [wire.text(b"key%d" % n), wire.text(b"v" * 200)]
    best = float("inf")
    for _ in range(3):
        store = Store()
        client = store.connect()
        started = time.process_time()
        for piece in pieces:
            client.feed(piece)
        best = min(best, time.process_time() - started)
        assert store.state.number_of_keys() == keys
    return best


def test_a_multi_set_in_pieces_costs_in_proportion_to_its_keys():
    """Eight times the keys: 8 if linear, 64 if each piece reads the query again from its start."""
    assert seconds_for_multi_set(8000) < 24 * seconds_for_multi_set(1000)


def test_a_large_value_in_small_pieces_is_copied_in_proportion_to_its_size(store):
    client = store.connect()
    query = wire.set_(b"k", b"v" * parser.VALUE_OCTETS)
    started = time.process_time()
    for start in range(0, len(query), 200):
        client.feed(query[start : start + 200])

    assert store.state.get(b"k") == b"v" * parser.VALUE_OCTETS
    assert time.process_time() - started < 5, "quadratic: 42,000 pieces, 176 GB of copies"


# Limits


def test_what_is_exactly_at_a_limit_is_taken(store):
    client = store.connect()
    key = b"k" * parser.KEY_OCTETS
    client.feed(wire.set_(key, b"v" * parser.VALUE_OCTETS))

    assert store.state.get(key) == b"v" * parser.VALUE_OCTETS
    assert store.ask(client, wire.check(*[b"x"] * parser.KEYS)) == b"\1"


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"\x01" + wire.u64(8193), "a key of 8193 octets in SET, at most 8192"),
        (b"\x01" + wire.text(b"k") + wire.u64(8388609), "a value of 8388609 octets in SET"),
        (b"\x02" + wire.text(b"k") + wire.text(b"") + wire.u64(2**63), "COMPARE_SET"),
        (b"\x03" + wire.u64(2**64 - 1), "a key of 18446744073709551615 octets in GET"),
        (b"\x05" + wire.u64(131073), "131073 keys in one CHECK, at most 131072"),
        (b"\x0a" + wire.u64(2**64 - 1), "keys in one MULTI_GET"),
        (b"\x06" + wire.u64(2) + wire.text(b"k") + wire.u64(8193), "a key of 8193 octets in WAIT"),
        (b"\x0b" + wire.u64(131073), "131073 keys in one MULTI_SET"),
        (b"\x0b" + wire.u64(1) + wire.u64(8193), "a key of 8193 octets in MULTI_SET"),
        (b"\x0b" + wire.u64(1) + wire.text(b"k") + wire.u64(8388609), "a value of 8388609"),
        (b"\x12" + wire.u64(8193), "a key of 8193 octets in BARRIER"),
    ],
)
def test_a_length_over_a_limit_is_refused_when_it_is_read(start, reason):
    assert reason in reason_of(ProtocolError, [wire.GREETING, start])
    assert reason in reason_of(ProtocolError, octets_of(wire.GREETING + start))


@pytest.mark.parametrize(
    "pieces",
    [
        [
            b"\x0b" + wire.u64(9),
            *[wire.text(b"k") + wire.text(bytes(8 << 20))] * 7,
            wire.text(b"k"),
        ],
        [b"\x06" + wire.u64(9000), *[wire.text(bytes(8192))] * 8184],
    ],
)
def test_a_query_over_the_total_is_refused_before_its_octets_come(store, pieces):
    client = store.connect()
    for piece in pieces:
        client.feed(piece)

    with pytest.raises(ProtocolError, match="more than 67108864 octets in all"):
        client.feed(wire.u64(8192 if pieces[0][0] == 6 else 8 << 20))


def test_announced_octets_take_no_memory_before_they_come(store):
    clients = [store.connect() for _ in range(200)]
    tracemalloc.start()
    for client in clients:
        client.feed(b"\x01" + wire.text(b"k") + wire.u64(parser.VALUE_OCTETS) + b"v")
        client.feed(b"v")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20


# Flow control


def test_parsing_pauses_over_the_reply_limit_and_goes_on_in_order(store):
    client = store.connect()
    client.feed(wire.set_(b"k", b"v" * 300_000))
    queries = b"".join(wire.get(b"k") + wire.ping(n) for n in range(20))
    replies = b""
    turns = 0
    client.feed(queries + wire.ping(99)[:2])
    while client.paused:
        piece = store.take(client)
        assert len(piece) <= parser.REPLY_OCTETS + 300_012
        replies += piece
        turns += 1
        client.feed(b"")
    client.feed(wire.ping(99)[2:])
    replies += store.take(client)

    assert turns == 5
    assert replies == b"".join(
        wire.text(b"v" * 300_000) + struct.pack("<I", n) for n in range(20)
    ) + struct.pack("<I", 99)


def test_a_large_value_asked_for_many_times_is_not_copied(store):
    client = store.connect()
    client.feed(wire.set_(b"k", b"v" * parser.VALUE_OCTETS))
    tracemalloc.start()
    client.feed(wire.multi_get(*[b"k"] * 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert sum(len(octets) for _, octets in store.outputs) > 8_000_000_000
    assert peak < 1 << 20
