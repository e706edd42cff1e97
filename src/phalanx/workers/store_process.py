"""The store's process, as its parent the fork server sees it.

There is none with `--store=worker`: then rank 0's program serves, and only its port is held here.

Its listening sockets are bound in the fork server before the port is told to anyone. They are
watched while a round has no store's process yet; the first client brings it to life. It is killed
with its round, since the next one must find nothing of this one's keys.
"""

from __future__ import annotations

import os
import select
import signal

from phalanx.workers.process import die_with_parent, set_title, signal_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Protocol

    class StoreService(Protocol):
        """What is needed of the store; `net.store_service` has it."""

        port: int

        def open(self, port: int | None, *, loopback: bool, in_worker: bool) -> None:
            """Bind and listen, on a free port if none is named. Raises OSError with errno."""

        def filenos(self) -> list[int]:
            """The listening sockets, to wait for the first client; none if rank 0 serves."""

        def serve(self) -> NoReturn:
            """In the child: serve until killed."""

        def renew(self) -> None:
            """A fresh port, or the named one with nothing left in its queue. Never raises."""


__all__ = ["StoreProcess"]


class StoreProcess:
    """At most one process; `pid` is None while there is none."""

    def __init__(self, service: StoreService, poll: select.poll) -> None:
        self.pid: int | None = None
        #: Listening sockets in `poll`, while a client is waited for.
        self.watched: list[int] = []
        self._service = service
        self._poll = poll

    @property
    def port(self) -> int:
        return self._service.port

    def open(self, port: int | None, *, loopback: bool, in_worker: bool) -> None:
        """Bind and listen for the first round; only bind if rank 0 serves. Raises OSError."""
        self._service.open(port, loopback=loopback, in_worker=in_worker)

    def watch(self) -> None:
        """A round begins: wait for its first client."""
        self.watched = self._service.filenos()
        for fd in self.watched:
            self._poll.register(fd, select.POLLIN)

    def start(self, leave_behind: Callable[[], None]) -> None:
        """The first client is there: fork; the child calls `leave_behind`. Raises OSError."""
        self._ignore()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._serve(parent, leave_behind)
        self.pid = pid

    def stop(self) -> None:
        """The round is over: kill it, and wait until it is gone."""
        self._ignore()
        if self.pid is not None:
            signal_child(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None

    def renew(self) -> None:
        """Sockets for the next round, with an empty queue."""
        self._service.renew()

    def _ignore(self) -> None:
        for fd in self.watched:
            self._poll.unregister(fd)
        self.watched = []

    def _serve(self, parent: int, leave_behind: Callable[[], None]) -> NoReturn:
        try:
            die_with_parent(parent)
            set_title("phalanx store")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            leave_behind()
            self._service.serve()
        finally:
            os._exit(1)
