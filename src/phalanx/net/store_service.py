"""The port of the workers' store, round by round, and the door to its server.

The fork server binds here, before the port is told to anyone, so that nobody can be told a port
that is then taken, and forks the process that calls `serve`. On one node only loopback addresses
are bound, both families on one port; else one dual-stack socket on all addresses. If rank 0 is to
serve the store, its port is only held for it (`net.held_port`).
"""

from __future__ import annotations

import _socket as net  # socket.py adds 4 ms of enumerations and nothing that is used here
import os
from errno import EADDRINUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["StoreService"]

_BACKLOG = 4096
#: As `struct linger`: a close resets the connection. So neither end keeps a port in TIME_WAIT for
#: a minute, and many short rounds cannot use up a small range. What was sent has been read by then,
#: or nobody wants it: the store closes when its client has, or with the round.
_NO_LINGER = b"\1\0\0\0" + b"\0\0\0\0"
#: How often a free port is looked for that is free in both families.
_ATTEMPTS = 16


class StoreService:
    """Sockets for one store at a time. `port` is the bound one once `open` returned."""

    def __init__(self) -> None:
        self.port = 0
        self._named = False
        self._loopback = True
        self._in_worker = False
        #: Says to other jobs of ours that a named port is taken, though nobody may listen there.
        self._lock: net.socket | None = None
        #: They listen, unless rank 0 is to serve.
        self._sockets: list[net.socket] = []

    def open(self, port: int | None, *, loopback: bool, in_worker: bool) -> None:
        """Bind and listen on the named port, or a free one. Raises OSError (EADDRINUSE, ...).

        `in_worker`: do not listen, rank 0 will.
        """
        if port:
            self._lock = _lock(port)
        self._named = port is not None
        self._loopback = loopback
        self._in_worker = in_worker
        self.port, self._sockets = self._bind(port or 0)

    def filenos(self) -> list[int]:
        """The sockets that listen."""
        return [] if self._in_worker else [listener.fileno() for listener in self._sockets]

    def serve(self) -> NoReturn:
        """In a process of its own: serve the store on these sockets until killed."""
        from phalanx.net.store_server import serve
        from phalanx.say import say

        serve(self._sockets, say)
        os._exit(1)

    def renew(self) -> None:
        """Sockets for the next round, with nothing of the last one's clients in their queues.

        A fresh port where the choice is ours. If none can be had, or a port is named, the same
        sockets are kept, emptied of connections that nobody has accepted. Never raises.
        """
        if not self._named:
            old = self._sockets
            try:
                self.port, self._sockets = self._bind(0)
            except OSError:
                pass  # all ports taken just now: the old one is ours and will do
            else:
                for sock in old:
                    sock.close()
                return
        for sock in self._sockets:
            _drain(sock)

    def _bind(self, port: int) -> tuple[int, list[net.socket]]:
        if self._in_worker:
            from phalanx.net.held_port import hold

            return hold(port)
        listeners = _listen(port, loopback=self._loopback)
        return listeners[0].getsockname()[1], listeners


def _lock(port: int) -> net.socket:
    """A name that one job of this network namespace can have. Raises OSError (EADDRINUSE).

    A port may be bound by two who both set SO_REUSEADDR, as long as none of them listens; with
    `--store=worker` that is until rank 0 does, and workers would meet another job's rank 0.
    """
    lock = net.socket(net.AF_UNIX, net.SOCK_DGRAM)
    try:
        lock.bind(f"\0phalanx store {port}")
    except OSError:
        lock.close()
        raise
    return lock


def _listen(port: int, *, loopback: bool) -> list[net.socket]:
    if not loopback:
        return [_listen_everywhere(port)]
    for attempt in range(_ATTEMPTS):
        first = _listener(net.AF_INET, "127.0.0.1", port)
        try:
            return [first, _listener(net.AF_INET6, "::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno != EADDRINUSE:
                return [first]  # this machine has no IPv6
            first.close()
            if port or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _listen_everywhere(port: int) -> net.socket:
    try:
        return _listener(net.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise
        return _listener(net.AF_INET, "0.0.0.0", port)


def _listener(family: int, host: str, port: int) -> net.socket:
    sock = net.socket(family, net.SOCK_STREAM)
    try:
        if port:
            # A port that the last job left seconds ago can be bound; one listened on cannot. Not
            # for port 0: two sockets with this option may be given the same free port.
            sock.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
        sock.setsockopt(net.SOL_SOCKET, net.SO_LINGER, _NO_LINGER)  # of accepted ones: they inherit
        if family == net.AF_INET6:
            sock.setsockopt(net.IPPROTO_IPV6, net.IPV6_V6ONLY, 1 if host == "::1" else 0)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _drain(listener: net.socket) -> None:
    """Closes what nobody has accepted. A socket that does not listen has nothing of that kind."""
    while True:
        try:
            fd, _peer = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        os.close(fd)
