"""The TCPStore protocol of one connection: octets in, operations on the state, replies out.

Theory of operation, after the wire reference (sections 1 to 7). A query has no total length: it is
a type, for some types a count, then fields (`u64` length and that many octets), for some types a
number. `feed` takes octets however the network cut them. Between two calls a connection remembers
where in a query it stands (`_query`, `_fields`, `_fields_left`) and at most one unfinished field
(`_held`), so that a query of 5,000 keys in 5,000 pieces is read once. A query takes effect when it
is complete, at once and whole.

Any octets may arrive, only a `ProtocolError` may result. A length is judged when it is read, before
the octets that it announces are waited for. There is no reply for an error: the caller closes.

Replies go into a list of `(connection, octets)` that all connections of a store share, in the order
in which they are owed. A query can owe a reply to another connection whose wait it ends, or to its
own; that one comes before the query's own reply, since it was asked for earlier.

Flow control: once a call has owed its own connection more than `REPLY_OCTETS`, it stops between two
queries, keeps the rest and is `paused`; `feed(b"")` goes on.
"""

from __future__ import annotations

from struct import Struct

from phalanx.record import Record
from phalanx.store.state import NotANumberError

__all__ = [
    "GREETING",
    "KEYS",
    "KEY_OCTETS",
    "QUERY_OCTETS",
    "REPLY_OCTETS",
    "VALUE_OCTETS",
    "Connection",
    "OldClientError",
    "ProtocolError",
    "StrangerError",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phalanx.store.state import StoreState

#: VALIDATE with its magic number: what a client of torch 2.2 or later sends first, and only first.
GREETING = b"\x00\xce\xf7\x85\x3c"

#: The reference server's limits (section 7), each inclusive: who met none of them meets none here.
KEYS = 131_072
KEY_OCTETS = 8_192
VALUE_OCTETS = 8_388_608
#: Bound of one whole query. The limits above allow 1 TiB, and a query is held until it is complete.
#: 64 MiB is eight of the largest values, or 131,072 keys of 500 octets, and small next to a worker.
QUERY_OCTETS = 64 * 1024 * 1024
#: Owed replies at which parsing pauses. A client that does not read costs this and one reply more.
REPLY_OCTETS = 1024 * 1024

#: Up to here a value is copied behind its length; above, its octets are sent from where they are,
#: so that a MULTI_GET of large values (or of one value many times) takes no memory for them.
_COPIED_OCTETS = 512

_STOP_WAITING = b"\x00"
_WAIT_CANCELED = b"\x01"
_THERE = b"\x00"
_NOT_THERE = b"\x01"

_U32 = Struct("<I")
_U64 = Struct("<Q")
_I64 = Struct("<q")

#: The highest type of torch 2.1 and older, and the one that they send without arguments.
_OLD_HIGHEST = 11
_OLD_GETNUMKEYS = 6
_OLD_CLIENT = "a client of torch 2.1 or older: its protocol differs, torch 2.2 or later is needed"


class ProtocolError(Exception):
    """The peer broke the protocol; its connection must be closed. `str()` is the reason."""


class StrangerError(ProtocolError):
    """The peer did not start as a client does: a port scan, a wrong port, a health check."""


class OldClientError(ProtocolError):
    """The peer starts as clients of torch 2.1 and older do; their query types differ from ours."""


class _Query(Record):
    """One row of the protocol: how a query is read, and what is done once it is complete."""

    name: str
    run: Callable[[Connection, list[bytes], int], None]
    #: Fields of the query, or of one item if it is a list. The first is a key, others are values.
    fields: int = 0
    is_list: bool = False
    number: Struct | None = None


class Connection:
    """The server's end of one client connection, without the socket.

    `outputs` is the list that replies are added to, as `(connection id, octets)`. After `feed` has
    raised, only `close` may be called.
    """

    __slots__ = (
        "_fields",
        "_fields_left",
        "_held",
        "_needed_octets",
        "_outputs",
        "_query",
        "_query_octets",
        "_room_octets",
        "_state",
        "greeted",
        "id",
        "paused",
    )

    def __init__(self, state: StoreState, outputs: list[tuple[int, bytes]]) -> None:
        self.id = state.connect()
        #: Whether the peer has shown itself to be a client of torch 2.2 or later.
        self.greeted = False
        #: Whether `feed` stopped because of the replies it owes; there are octets left to parse.
        self.paused = False
        self._state = state
        self._outputs = outputs
        #: Octets that arrived and were not used: part of one field, or what a pause left.
        self._held = bytearray()
        #: How long `_held` must be before it is worth looking again.
        self._needed_octets = 1
        #: The query that is being read, None between two queries.
        self._query: _Query | None = None
        self._fields: list[bytes] = []
        #: Fields still to come; -1 while the count of a list is.
        self._fields_left = 0
        self._query_octets = 0
        self._room_octets = 0

    def feed(self, data: bytes) -> None:
        """Takes what arrived; `b""` goes on after a pause. Raises ProtocolError: close then."""
        held = self._held
        if held:
            held += data
            if len(held) < self._needed_octets:
                return
            data = bytes(held)
            held.clear()
        self._needed_octets = 1
        self._room_octets = REPLY_OCTETS
        position = 0
        if not self.greeted:
            position = self._greet(data)
        if self.greeted:
            position = self._parse(data, position)
        if position < len(data):
            held += memoryview(data)[position:]

    def close(self) -> None:
        """Forgets the connection's wait. Everything it stored and counted stays."""
        self._state.forget_wait(self.id)

    # Reading

    def _greet(self, data: bytes) -> int:
        """Where the first query starts; 0 while the greeting has not come whole.

        A first octet that no client of any age sends is refused at once. Otherwise five octets
        tell, and the reason is the same however they were cut: in the old numbering the length of a
        key or a number of keys stands where the magic number would be.
        """
        if not data:
            return 0
        first = data[0]
        if first > _OLD_HIGHEST:
            raise StrangerError(f"not a torch client: its first octet is 0x{first:02x}")
        if first == _OLD_GETNUMKEYS:
            raise OldClientError(_OLD_CLIENT)
        if len(data) < len(GREETING):
            self._needed_octets = len(GREETING)
            return 0
        if data.startswith(GREETING):
            self.greeted = True
            return len(GREETING)
        if _U32.unpack_from(data, 1)[0] <= KEYS:
            raise OldClientError(_OLD_CLIENT)
        raise StrangerError(f"not a torch client: it starts with {data[:5].hex(' ')}")

    def _parse(self, data: bytes, position: int) -> int:
        """Runs each query that is complete. Returns where the octets start that must be kept."""
        end = len(data)
        self.paused = False
        while True:
            query = self._query
            if query is None:
                if position == end:
                    break
                if self._room_octets < 0:
                    self.paused = True
                    break
                query = self._begin(data[position])
                position += 1
            if self._fields_left:
                position = self._read_fields(query, data, position)
                if self._fields_left:
                    break
            number = 0
            if query.number is not None:
                if end - position < query.number.size:
                    self._needed_octets = query.number.size
                    break
                (number,) = query.number.unpack_from(data, position)
                position += query.number.size
            self._query = None
            query.run(self, self._fields, number)
        return position

    def _begin(self, number: int) -> _Query:
        query = _QUERIES.get(number)
        if query is None:
            raise ProtocolError(f"query type {number} is not known")
        self._query = query
        self._fields = []
        self._fields_left = -1 if query.is_list else query.fields
        self._query_octets = 0
        return query

    def _read_fields(self, query: _Query, data: bytes, position: int) -> int:
        """Reads the count, if it is due, and as many whole fields as there are."""
        end = len(data)
        left = self._fields_left
        if left < 0:
            if end - position < _U64.size:
                self._needed_octets = _U64.size
                return position
            left = self._judge_count(query, _U64.unpack_from(data, position)[0])
            position += _U64.size
        fields = self._fields
        octets = self._query_octets
        unpack = _U64.unpack_from
        while left:
            start = position + 8
            if start > end:
                self._needed_octets = 8
                break
            (length,) = unpack(data, position)
            if length > KEY_OCTETS or octets + length > QUERY_OCTETS:
                self._judge_length(query, length, octets)
            stop = start + length
            if stop > end:
                self._needed_octets = 8 + length
                break
            fields.append(data[start:stop])
            octets += 8 + length
            position = stop
            left -= 1
        self._fields_left = left
        self._query_octets = octets
        return position

    def _judge_count(self, query: _Query, count: int) -> int:
        """How many fields `count` items have. Raises ProtocolError if that is too many."""
        if count > KEYS:
            raise ProtocolError(f"{count} keys in one {query.name}, at most {KEYS}")
        return count * query.fields

    def _judge_length(self, query: _Query, length: int, octets: int) -> None:
        """Raises ProtocolError if the next field would break a limit."""
        is_key = len(self._fields) % query.fields == 0
        limit = KEY_OCTETS if is_key else VALUE_OCTETS
        if length > limit:
            what = "key" if is_key else "value"
            raise ProtocolError(f"a {what} of {length} octets in {query.name}, at most {limit}")
        if octets + length > QUERY_OCTETS:
            raise ProtocolError(f"a {query.name} of more than {QUERY_OCTETS} octets in all")

    # Replying

    def _reply(self, octets: bytes) -> None:
        self._outputs.append((self.id, octets))
        self._room_octets -= len(octets)

    def _reply_value(self, value: bytes) -> None:
        if len(value) <= _COPIED_OCTETS:
            self._reply(_U64.pack(len(value)) + value)
        else:
            self._reply(_U64.pack(len(value)))
            self._reply(value)

    def _wake(self, connections: Sequence[int]) -> None:
        for connection in connections:
            self._outputs.append((connection, _STOP_WAITING))

    # Queries, in the order of section 3. Each is called with its fields and its number.

    def _validate(self, fields: list[bytes], number: int) -> None:
        raise ProtocolError("a second VALIDATE")

    def _set(self, fields: list[bytes], number: int) -> None:
        key, value = fields
        self._wake(self._state.set(key, value))

    def _compare_set(self, fields: list[bytes], number: int) -> None:
        key, expected, desired = fields
        value, woken = self._state.compare_set(key, expected, desired)
        self._wake(woken)
        self._reply_value(value)

    def _get(self, fields: list[bytes], number: int) -> None:
        self._reply_value(self._state.get(fields[0]))

    def _add(self, fields: list[bytes], number: int) -> None:
        try:
            count, woken = self._state.add(fields[0], number)
        except NotANumberError as error:
            raise ProtocolError(f"ADD on {fields[0][:64]!r}: {error}") from None
        self._wake(woken)
        self._reply(_I64.pack(count))

    def _check(self, fields: list[bytes], number: int) -> None:
        self._reply(_THERE if self._state.has_all(fields) else _NOT_THERE)

    def _wait(self, fields: list[bytes], number: int) -> None:
        if self._state.wait(self.id, fields):
            self._reply(_STOP_WAITING)

    def _number_of_keys(self, fields: list[bytes], number: int) -> None:
        self._reply(_I64.pack(self._state.number_of_keys()))

    def _delete_key(self, fields: list[bytes], number: int) -> None:
        self._reply(_I64.pack(self._state.delete(fields[0])))

    def _append(self, fields: list[bytes], number: int) -> None:
        key, value = fields
        self._wake(self._state.append(key, value))

    def _multi_get(self, fields: list[bytes], number: int) -> None:
        for key in fields:
            self._reply_value(self._state.get(key))

    def _multi_set(self, fields: list[bytes], number: int) -> None:
        self._wake(self._state.multi_set(list(zip(fields[::2], fields[1::2], strict=True))))

    def _cancel_wait(self, fields: list[bytes], number: int) -> None:
        self._state.forget_wait(self.id)
        self._reply(_WAIT_CANCELED)

    def _ping(self, fields: list[bytes], number: int) -> None:
        self._reply(_U32.pack(number))

    def _queue_push(self, fields: list[bytes], number: int) -> None:
        key, value = fields
        self._wake(self._state.queue_push(key, value))

    def _queue_pop(self, fields: list[bytes], number: int) -> None:
        length, value = self._state.queue_pop(fields[0])
        self._reply(_I64.pack(length))
        if length:
            self._reply_value(value)

    def _queue_length(self, fields: list[bytes], number: int) -> None:
        self._reply(_I64.pack(self._state.queue_length(fields[0])))

    def _list_keys(self, fields: list[bytes], number: int) -> None:
        keys = self._state.keys()
        parts = [_I64.pack(len(keys))]
        for key in keys:
            parts += (_U64.pack(len(key)), key)
        self._reply(b"".join(parts))

    def _barrier(self, fields: list[bytes], number: int) -> None:
        try:
            complete, woken = self._state.barrier(self.id, fields[0], number)
        except NotANumberError as error:
            raise ProtocolError(f"BARRIER on {fields[0][:64]!r}: {error}") from None
        self._wake(woken)
        if complete:
            self._reply(_STOP_WAITING)


_QUERIES = {
    0: _Query("VALIDATE", Connection._validate),
    1: _Query("SET", Connection._set, fields=2),
    2: _Query("COMPARE_SET", Connection._compare_set, fields=3),
    3: _Query("GET", Connection._get, fields=1),
    4: _Query("ADD", Connection._add, fields=1, number=_I64),
    5: _Query("CHECK", Connection._check, fields=1, is_list=True),
    6: _Query("WAIT", Connection._wait, fields=1, is_list=True),
    7: _Query("GETNUMKEYS", Connection._number_of_keys),
    8: _Query("DELETE_KEY", Connection._delete_key, fields=1),
    9: _Query("APPEND", Connection._append, fields=2),
    10: _Query("MULTI_GET", Connection._multi_get, fields=1, is_list=True),
    11: _Query("MULTI_SET", Connection._multi_set, fields=2, is_list=True),
    12: _Query("CANCEL_WAIT", Connection._cancel_wait),
    13: _Query("PING", Connection._ping, number=_U32),
    14: _Query("QUEUE_PUSH", Connection._queue_push, fields=2),
    15: _Query("QUEUE_POP", Connection._queue_pop, fields=1),
    16: _Query("QUEUE_LEN", Connection._queue_length, fields=1),
    17: _Query("LIST_KEYS", Connection._list_keys),
    18: _Query("BARRIER", Connection._barrier, fields=1, number=_I64),
}
