"""What the store remembers: values, queues, and which connection waits for which keys.

Theory of operation, after sections 4 and 5 of the wire reference. A connection is a number that
`connect` gives out. It has at most one wait: the set of keys that it still awaits. Whatever makes a
key appear *strikes* that key off the waits; a connection whose set becomes empty is *woken*: its
number is in the list that the operation returns, and the caller owes it one STOP_WAITING.

Each operation is atomic and costs what it touches: a connection that leaves costs its own awaited
keys, not all keys. Nothing here knows of octets on a wire, limits or time; timeouts are the
client's, by `forget_wait`.

Where the reference server is odd (section 12) we are not: a push strikes the key off the one wait
that it satisfies, and a COMPARE_SET that stores nothing wakes nobody.
"""

from __future__ import annotations

from collections import deque

__all__ = ["NotANumberError", "StoreState"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NOBODY: tuple[int, ...] = ()
#: White space of C's `strtoll`, which the counters of ADD and BARRIER are read with.
_SPACE = b" \t\n\v\f\r"
_DIGITS = b"0123456789"
_INT64_DIGITS = 19
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class NotANumberError(ValueError):
    """ADD or BARRIER on a value that is no decimal 64-bit number. Nothing was changed.

    Not raised for trailing rubbish: "12ab" counts as 12, as in C.
    """


class StoreState:
    """All keys, queues and waits of one store. Operations that can wake return whom they woke."""

    def __init__(self) -> None:
        #: The value of each key.
        self._values: dict[bytes, bytes] = {}
        #: The queue of each key, a name space of its own. No queue in here is empty.
        self._queues: dict[bytes, deque[bytes]] = {}
        #: Who awaits each key, longest first (a dict as an ordered set). None in here is empty.
        self._waiters: dict[bytes, dict[int, None]] = {}
        #: The keys that each waiting connection still awaits: `_waiters` seen from the other side.
        self._awaited: dict[int, set[bytes]] = {}
        self._last_connection = 0

    def connect(self) -> int:
        """A number for a new connection, never given out twice."""
        self._last_connection += 1
        return self._last_connection

    # Keys

    def get(self, key: bytes) -> bytes:
        """The value, or the empty value for a missing key: clients WAIT before they GET."""
        return self._values.get(key, b"")

    def set(self, key: bytes, value: bytes) -> Sequence[int]:
        self._values[key] = value
        return self._strike_all(key) if key in self._waiters else _NOBODY

    def multi_set(self, pairs: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Stores all pairs, then wakes: whoever is woken sees every one of them."""
        self._values.update(pairs)
        return [woken for key, _ in pairs for woken in self._strike_all(key)]

    def append(self, key: bytes, value: bytes) -> Sequence[int]:
        return self.set(key, self._values.get(key, b"") + value)

    def compare_set(
        self, key: bytes, expected: bytes, desired: bytes
    ) -> tuple[bytes, Sequence[int]]:
        """Stores `desired` if the value is `expected`; a missing key counts as empty.

        Returns what the client is told: `desired` if it was stored, else the present value, or
        `expected` if there is none.
        """
        present = self._values.get(key)
        if present == expected or (present is None and not expected):
            return desired, self.set(key, desired)
        return expected if present is None else present, _NOBODY

    def add(self, key: bytes, delta: int) -> tuple[int, Sequence[int]]:
        """The new count, kept as decimal text. Raises NotANumberError."""
        count = self._count(key, delta)
        return count, self.set(key, b"%d" % count)

    def delete(self, key: bytes) -> bool:
        """Whether there was such a key. Queues stay, waiters are not told."""
        return self._values.pop(key, None) is not None

    def number_of_keys(self) -> int:
        return len(self._values)

    def keys(self) -> list[bytes]:
        return list(self._values)

    # Queues

    def queue_push(self, key: bytes, value: bytes) -> Sequence[int]:
        """Appends, and strikes the key off the wait of the connection that awaits it longest."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        queue.append(value)
        waiters = self._waiters.get(key)
        if waiters is None:
            return _NOBODY
        longest = next(iter(waiters))
        self._drop_waiter(key, longest)
        return (longest,) if self._strike(key, longest) else _NOBODY

    def queue_pop(self, key: bytes) -> tuple[int, bytes]:
        """The length before the pop, and the oldest value (empty if the length is 0)."""
        queue = self._queues.get(key)
        if queue is None:
            return 0, b""
        length = len(queue)
        value = queue.popleft()
        if not queue:
            del self._queues[key]
        return length, value

    def queue_length(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    # Waits

    def has_all(self, keys: Iterable[bytes]) -> bool:
        """Whether each of `keys` is a key or a queue that is not empty."""
        return all(key in self._values or key in self._queues for key in keys)

    def wait(self, connection: int, keys: Iterable[bytes]) -> bool:
        """True if all of `keys` are there; else `connection` waits for the missing ones.

        An older wait of the same connection is dropped: a client holds a lock while it waits, so
        the older one's client call has ended.
        """
        self.forget_wait(connection)
        missing = {key for key in keys if key not in self._values and key not in self._queues}
        if not missing:
            return True
        self._awaited[connection] = missing
        for key in missing:
            self._waiters.setdefault(key, {})[connection] = None
        return False

    def barrier(self, connection: int, key: bytes, size: int) -> tuple[bool, Sequence[int]]:
        """Counts `connection` in. (True, the others) if `size` have now come; else it waits.

        The count stands when its connection leaves, and is never reset. Raises NotANumberError.
        """
        self.forget_wait(connection)
        count = self._count(key, 1)
        self._values[key] = b"%d" % count
        if count >= size:
            return True, self._strike_all(key)
        self._awaited[connection] = {key}
        self._waiters.setdefault(key, {})[connection] = None
        return False, _NOBODY

    def forget_wait(self, connection: int) -> None:
        """Ends the connection's wait unanswered, if it has one: cancelled, or gone."""
        for key in self._awaited.pop(connection, ()):
            self._drop_waiter(key, connection)

    def validate(self) -> None:
        """Asserts the invariants named in `__init__`. For tests; costs as much as there is."""
        assert all(self._queues.values()), "an empty queue is kept"
        assert all(self._waiters.values()), "an empty list of waiters is kept"
        assert all(self._awaited.values()), "a wait for nothing is kept"
        by_key = {(key, waiter) for key, waiters in self._waiters.items() for waiter in waiters}
        by_waiter = {(key, waiter) for waiter, keys in self._awaited.items() for key in keys}
        assert by_key == by_waiter, "waiters and awaited keys disagree"

    # Helpers

    def _strike_all(self, key: bytes) -> Sequence[int]:
        waiters = self._waiters.pop(key, None)
        if waiters is None:
            return _NOBODY
        return [waiter for waiter in waiters if self._strike(key, waiter)]

    def _strike(self, key: bytes, waiter: int) -> bool:
        """Takes `key` off what `waiter` awaits; True if it was the last one."""
        awaited = self._awaited[waiter]
        awaited.remove(key)
        if awaited:
            return False
        del self._awaited[waiter]
        return True

    def _drop_waiter(self, key: bytes, waiter: int) -> None:
        waiters = self._waiters[key]
        del waiters[waiter]
        if not waiters:
            del self._waiters[key]

    def _count(self, key: bytes, delta: int) -> int:
        """The count at `key` plus `delta`, modulo 2^64 as in C."""
        text = self._values.get(key)
        total = delta if text is None else _parse_int64(text) + delta
        return (total - _INT64_MIN) % 2**64 + _INT64_MIN


def _parse_int64(text: bytes) -> int:
    """The number at the start of `text`, read as C's `strtoll` does.

    `int()` is no substitute: it takes underscores, refuses trailing rubbish, and is quadratic in
    the length, which a client chooses.
    """
    unsigned = text.lstrip(_SPACE)
    negative = unsigned[:1] == b"-"
    if unsigned[:1] in (b"-", b"+"):
        unsigned = unsigned[1:]
    if unsigned[:1] not in _DIGITS or not unsigned:
        raise NotANumberError(f"the value {text[:32]!r} is not a number")
    significant = unsigned.lstrip(b"0")[: _INT64_DIGITS + 1]
    digits = significant[: len(significant) - len(significant.lstrip(_DIGITS))]
    number = int(digits or b"0")
    number = -number if negative else number
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise NotANumberError(f"the value {text[:32]!r} does not fit into 64 bits")
    return number
