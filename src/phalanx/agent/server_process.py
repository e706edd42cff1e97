"""Bring up the fork server's process, and be its program.

It is forked from the agent while that has imported almost nothing, which costs half a millisecond;
if the agent already has a second thread (a tracer, a profiler) a fork could copy held locks, so it
is then started afresh, without what started that thread in the agent.
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
    from collections.abc import Iterable
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
    """A fresh interpreter, without `site`: what starts a thread in ours would start it there too.

    Handlers of ours are gone by then, and with them which signals were ignored before; and a signal
    could come before it is ready for one. So it starts with all blocked, and is told the rest.
    Not by posix_spawn, which `subprocess` takes if it can (not with a new session): glibc's leaves
    an internal signal ignored, and workers would inherit that.
    """
    import subprocess

    os.set_inheritable(theirs.fileno(), True)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.append({root!r}); from {__name__} import _main; _main()"
    settings = [str(theirs.fileno()), str(store.port or ""), "loopback" if store.loopback else ""]
    signals = [_in_words(start_state.mask), _in_words(start_state.ignored)]
    argv = [sys.executable, "-S", "-s", "-P", "-c", code, *settings, *signals]
    started = subprocess.Popen(argv, close_fds=False, start_new_session=True)
    started.returncode = 0  # the agent reaps it, not this object
    return started.pid


def _in_words(signums: Iterable[int]) -> str:
    return ",".join(str(int(signum)) for signum in signums)


def _from_words(words: str) -> frozenset[int]:
    return frozenset(int(word) for word in words.split(",") if word)


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
    """The program of the fresh interpreter."""
    fd, port, loopback, mask, ignored = sys.argv[1:6]
    start_state = StartState()
    start_state.mask = set(_from_words(mask))
    start_state.ignored = _from_words(ignored)
    theirs = net.socket(fileno=int(fd))
    os.set_inheritable(theirs.fileno(), False)
    address = StoreAddress("", int(port) if port else None, loopback=bool(loopback))
    _serve(theirs, address, start_state)
