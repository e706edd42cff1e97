"""Bring up the fork server's process, and be its program.

It is forked from the agent while that has imported almost nothing, which costs half a millisecond;
if the agent already has a second thread (a tracer, a profiler) a fork could copy held locks, so it
is then started afresh. Run as a module this file is that fresh start.
"""

from __future__ import annotations

import _socket as net  # without the 4 ms of socket.py
import os
import signal
import sys

from phalanx.job import StoreAddress
from phalanx.net.store_service import StoreService
from phalanx.workers.fork_server import ForkServer
from phalanx.workers.messages import Link
from phalanx.workers.process import StartState, block_signals, unblock_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["start_fork_server"]


def start_fork_server(store: StoreAddress, start_state: StartState) -> tuple[Link, int]:
    """Start it; the agent's end of the link, and its pid. Raises OSError."""
    ours, theirs = net.socketpair()
    block_signals()
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            pid = _spawn(theirs, store, start_state)
        else:
            pid = os.fork()
            if pid == 0:
                ours.close()
                signal.set_wakeup_fd(-1)
                _serve(theirs, store, start_state)
    finally:
        unblock_signals()
    theirs.close()
    return Link(ours), pid


def _spawn(theirs: net.socket, store: StoreAddress, start_state: StartState) -> int:
    """A fresh interpreter. Dispositions pass through exec; handlers of ours do not."""
    os.set_inheritable(theirs.fileno(), True)
    settings = [str(theirs.fileno()), str(store.port or ""), "loopback" if store.loopback else ""]
    argv = [sys.executable, "-P", "-m", __name__, *settings]
    return os.posix_spawn(sys.executable, argv, os.environ, setsigmask=start_state.mask)


def _serve(theirs: net.socket, store: StoreAddress, start_state: StartState) -> NoReturn:
    try:
        service = StoreService(store.port, loopback=store.loopback)
        ForkServer(Link(theirs), service, start_state).run()
    except BaseException:
        import traceback

        os.write(
            2, f"phalanx: internal error in the fork server\n{traceback.format_exc()}".encode()
        )
    finally:
        os._exit(70)


def _main() -> NoReturn:
    fd, port, loopback = sys.argv[1:4]
    start_state = StartState()
    theirs = net.socket(fileno=int(fd))
    os.set_inheritable(theirs.fileno(), False)
    address = StoreAddress("", int(port) if port else None, loopback=bool(loopback))
    _serve(theirs, address, start_state)


if __name__ == "__main__":
    _main()
