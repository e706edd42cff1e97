"""Serves the workers' key-value store over sockets: one process, one thread, one epoll loop.

All meaning is in `phalanx.store`; here are only sockets. Each pass: wait for events, read what each
ready connection has sent (one read each, so that a busy client delays nobody), hand it to the
connection's parser, send the replies that fell due, to whomever they are owed.

What a peer can do to others, and why it cannot:

- not reading: its replies wait in `pending`; while more than REPLY_OCTETS do, nothing more of it is
  read or parsed (the reference server queues without bound, wire reference section 12);
- half a query, or silence: costs its own memory only, nothing ever blocks on one connection;
- not being a client: closed at the first octets, one line per address and kind of mistake, for a
  bounded number of them; a silent one gives its file descriptor back when there are no others left;
- its name: is never looked up (the reference server does, one blocking query per connection).

The process starts when the first client connects, so imports are few: `_socket` is 5 ms cheaper
than `socket`. With no traffic there are no timeouts and no CPU time.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
from collections import deque
from itertools import islice
from time import monotonic

from phalanx.store.parser import REPLY_OCTETS, Connection, ProtocolError
from phalanx.store.state import StoreState

__all__ = ["serve"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    Output = bytes | memoryview[int]

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_BROKEN = select.EPOLLERR | select.EPOLLHUP

#: Under glibc's mmap threshold (128 KiB): above it each read would map and unmap its buffer.
_READ_OCTETS = 64 * 1024
#: Pieces of one `sendmsg`; Linux takes 1,024 at most.
_SEND_PIECES = 256
_EVENTS = 256
#: What a reply costs to keep besides its octets: without it, 1 MiB of small ones would be 15 MiB.
_PIECE_OCTETS = 64
#: Clients accepted before those that are connected get their turn.
_ACCEPT_BATCH = 64
#: How long accepting rests when the system refuses; also tried again when a client leaves.
_ACCEPT_RETRY_S = 1.0
#: A client greets as soon as it is connected. Silent for longer, it may lose its file descriptor.
_SILENT_S = 5.0
#: Addresses (times kinds of mistake) that are reported and remembered.
_REFUSALS_REMEMBERED = 256
#: A host that vanished is noticed after 60 + 4 * 15 s; clients set no keep-alive of their own.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 60, 15, 4


def serve(listeners: Sequence[_socket.socket], say: Callable[[str], None] | None = None) -> None:
    """Serves a fresh store on sockets that are bound and listen already. Does not return.

    `say` gets one line for the operator, without a line end; by default it goes to stderr. Raises
    OSError only if the listeners themselves are unusable; the process is meant to be killed.
    """
    _Server(listeners, say or _say_on_stderr).run()


def _say_on_stderr(line: str) -> None:
    try:
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody reads it; the store goes on


class _Peer:
    """One accepted socket, its parser, and the replies that wait for the socket to take them."""

    __slots__ = (
        "accepted_s",
        "connection",
        "host",
        "is_open",
        "mask",
        "pending",
        "pending_octets",
        "socket",
    )

    def __init__(self, socket: _socket.socket, host: str, connection: Connection) -> None:
        self.socket = socket
        self.host = host
        self.connection = connection
        self.accepted_s = monotonic()
        self.is_open = True
        #: What epoll was last told to watch.
        self.mask = _IN
        #: Replies not yet sent. While there are any, only a writable event sends: order is kept.
        self.pending: deque[Output] = deque()
        #: What they take: their own octets, and _PIECE_OCTETS each.
        self.pending_octets = 0


class _Server:
    def __init__(self, listeners: Sequence[_socket.socket], say: Callable[[str], None]) -> None:
        self._say = say
        self._state = StoreState()
        #: Where all connections put their replies; emptied after each call of `feed`.
        self._outputs: list[tuple[int, bytes]] = []
        self._peers: dict[int, _Peer] = {}
        self._peers_by_id: dict[int, _Peer] = {}
        self._listeners = {listener.fileno(): listener for listener in listeners}
        #: When to accept again, while the system refuses.
        self._retry_at_s: float | None = None
        self._said_refusal_by_system = False
        self._refusals: set[tuple[str, str]] = set()
        self._epoll = select.epoll()
        for fd, listener in self._listeners.items():
            _prepare(listener)
            self._epoll.register(fd, _IN)

    def run(self) -> NoReturn:
        while True:
            timeout = None if self._retry_at_s is None else _ACCEPT_RETRY_S
            for fd, mask in self._epoll.poll(timeout, _EVENTS):
                # An event may be stale: its connection closed in this pass, and the number given to
                # a new one. All operations are non-blocking attempts, so that does no harm.
                peer = self._peers.get(fd)
                if peer is not None:
                    self._on_event(peer, mask)
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
            if self._retry_at_s is not None and monotonic() >= self._retry_at_s:
                self._resume_accepting()

    def _on_event(self, peer: _Peer, mask: int) -> None:
        if mask & (_OUT | _BROKEN):
            self._on_writable(peer)
        if mask & ~_OUT and peer.mask & _IN and peer.is_open:
            self._on_readable(peer)

    # Reading

    def _on_readable(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_READ_OCTETS)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._feed(peer, data)
        else:
            self._close(peer)

    def _feed(self, peer: _Peer, data: bytes) -> None:
        try:
            peer.connection.feed(data)
        except ProtocolError as error:
            self._deliver()  # what was owed before the mistake, to others too
            self._close(peer)
            self._report_refusal(peer, error)
            return
        if self._outputs:
            self._deliver()
        if peer.connection.paused:
            self._watch(peer)

    # Sending

    def _deliver(self) -> None:
        """Hands all outputs to their peers, and sends to those for whom nothing waited yet."""
        fresh = []
        for connection, octets in self._outputs:
            peer = self._peers_by_id[connection]
            if not peer.pending:
                fresh.append(peer)
            peer.pending.append(octets)
            peer.pending_octets += len(octets) + _PIECE_OCTETS
        self._outputs.clear()
        for peer in fresh:
            self._send(peer)
            if peer.pending:
                self._watch(peer)

    def _on_writable(self, peer: _Peer) -> None:
        """One send, and one step on if the parser was paused: others have their turn in between."""
        if peer.pending:
            self._send(peer)
        if peer.connection.paused and not peer.pending and peer.is_open:
            self._feed(peer, b"")
        self._watch(peer)

    def _send(self, peer: _Peer) -> None:
        pending = peer.pending
        try:
            if len(pending) == 1:
                sent = peer.socket.send(pending[0], _socket.MSG_NOSIGNAL)
            else:
                pieces = list(islice(pending, _SEND_PIECES))
                sent = peer.socket.sendmsg(pieces, (), _socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._close(peer)
            return
        peer.pending_octets -= sent
        while sent:
            first = pending[0]
            if len(first) > sent:
                pending[0] = memoryview(first)[sent:]
                break
            sent -= len(first)
            pending.popleft()
            peer.pending_octets -= _PIECE_OCTETS

    def _watch(self, peer: _Peer) -> None:
        """Tells epoll what can be done for `peer` now, if that has changed."""
        if not peer.is_open:
            return
        paused = peer.connection.paused
        mask = _OUT if paused or peer.pending else 0
        if not paused and peer.pending_octets <= REPLY_OCTETS:
            mask |= _IN
        if mask != peer.mask:
            peer.mask = mask
            self._epoll.modify(peer.socket.fileno(), mask)

    # Connections

    def _accept(self, listener: _socket.socket) -> None:
        for _ in range(_ACCEPT_BATCH):
            try:
                fd, address = listener._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno != errno.EMFILE or not _raise_descriptor_limit():
                    self._pause_accepting(error)
                    return
                continue
            self._admit(_socket.socket(listener.family, listener.type, 0, fd), address)

    def _admit(self, socket: _socket.socket, address: tuple[str, int]) -> None:
        socket.setblocking(False)
        host = address[0].removeprefix("::ffff:")
        peer = _Peer(socket, host, Connection(self._state, self._outputs))
        self._peers[socket.fileno()] = peer
        self._peers_by_id[peer.connection.id] = peer
        try:
            self._epoll.register(socket.fileno(), peer.mask)
        except OSError as error:  # no memory, or more watches than the system allows
            self._close(peer)
            self._pause_accepting(error)

    def _close(self, peer: _Peer) -> None:
        """Ends the connection. Its descriptor has no copy, so epoll forgets it by itself."""
        if not peer.is_open:
            return
        peer.is_open = False
        del self._peers[peer.socket.fileno()]
        del self._peers_by_id[peer.connection.id]
        peer.connection.close()
        peer.socket.close()
        peer.pending.clear()
        if self._retry_at_s is not None:
            self._resume_accepting()

    def _pause_accepting(self, error: OSError) -> None:
        """Rests, since a listener with a client in its queue would be reported again at once."""
        if not self._said_refusal_by_system:
            self._said_refusal_by_system = True
            self._say(
                f"store: cannot accept more than {len(self._peers)} clients: {error.strerror}; "
                "others wait until one leaves (is `ulimit -n` too low?)"
            )
        if self._retry_at_s is None:
            for fd in self._listeners:
                self._epoll.modify(fd, 0)
        self._retry_at_s = monotonic() + _ACCEPT_RETRY_S
        self._close_silent_strangers()

    def _resume_accepting(self) -> None:
        self._retry_at_s = None
        for fd in self._listeners:
            self._epoll.modify(fd, _IN)

    def _close_silent_strangers(self) -> None:
        """Takes descriptors back from those who connected a while ago and never greeted."""
        limit_s = monotonic() - _SILENT_S
        for peer in list(self._peers.values()):
            if not peer.connection.greeted and peer.accepted_s < limit_s:
                self._close(peer)

    def _report_refusal(self, peer: _Peer, error: ProtocolError) -> None:
        key = (peer.host, type(error).__name__)
        if key in self._refusals or len(self._refusals) > _REFUSALS_REMEMBERED:
            return
        self._refusals.add(key)
        if len(self._refusals) > _REFUSALS_REMEMBERED:
            self._say("store: further refused connections are not reported")
        else:
            self._say(f"store: closed a connection from {peer.host}: {error}")


def _prepare(listener: _socket.socket) -> None:
    """Options of the listener that each accepted socket inherits: no system calls per client."""
    listener.setblocking(False)
    listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
    listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    listener.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def _raise_descriptor_limit() -> bool:
    """Lifts this process's soft limit of open files to the hard one; False if that is no gain.

    Done when the limit is met: most stores never do, and the import is spared.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
