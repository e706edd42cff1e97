"""Bring up the fork server's process, and be its program.

It is forked from the agent while that has imported almost nothing, which costs half a millisecond,
and imports what it needs while the agent goes on importing what that needs. If the agent already
has a second thread (a tracer, a profiler) a fork could copy held locks, so it is then started
afresh, without what started that thread in the agent.
"""

from __future__ import annotations

import _socket as net  # without the 4 ms of socket.py
import os
import select
import signal
import sys

from phalanx.workers.messages import Link
from phalanx.workers.process import (
    StartState,
    block_signals,
    boottime,
    exit_status,
    signal_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from phalanx.outcome import ExitStatus

__all__ = ["ServerProcess"]


#: How long the fork server may take to leave when nothing is left to do.
_LEAVE_TIMEOUT_S = 2.0


class ServerProcess:
    """The fork server, as its parent the agent sees it."""

    def __init__(self, link: Link, pid: int) -> None:
        self.link = link
        self.pid = pid
        #: How it ended; None while it has not been reaped.
        self.status: ExitStatus | None = None

    @classmethod
    def start(cls, start_state: StartState) -> ServerProcess:
        """Start it. Raises OSError if the system refuses a process or a socket."""
        ours, theirs = net.socketpair()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        block_signals()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would be reaped unseen
        try:
            if len(os.listdir("/proc/self/task")) > 1:
                pid = _spawn(theirs, start_state)
            else:
                pid = os.fork()
                if pid == 0:
                    ours.close()
                    signal.set_wakeup_fd(-1)
                    _serve(theirs, start_state)
        finally:
            # As before: what was held back waits until the agent has handlers.
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        return cls(Link(ours), pid)

    def how_it_ended(self) -> str:
        """It has closed its end of the link: see to it that it is dead, and say how that came."""
        from phalanx.report.words import describe

        if self.status is None:
            signal_child(self.pid, signal.SIGKILL)
            self._wait()
        how = "is gone" if self.status is None else describe(self.status)
        return f"the fork server (pid {self.pid}) {how}"

    def dismiss(self) -> None:
        """Order it to leave, by the end of our half of the link. It has nothing left to do."""
        self.link.end()

    def leave(self) -> None:
        """Dismiss it and wait until it is gone. Never raises."""
        self.dismiss()
        if self.status is None:
            if not self._has_closed(boottime() + _LEAVE_TIMEOUT_S):
                signal_child(self.pid, signal.SIGKILL)
            self._wait()
        self.link.close()

    def _has_closed(self, until: float) -> bool:
        """Its end of the link closes when it exits: no sooner, and by whatever cause."""
        waiting = select.poll()
        while self.link.receive()[1]:
            left_s = until - boottime()
            if left_s <= 0:
                return False
            waiting.register(self.link.fileno(), select.POLLIN)
            waiting.poll(left_s * 1000)
        return True

    def _wait(self) -> None:
        try:
            dead = os.waitid(os.P_PID, self.pid, os.WEXITED)
        except ChildProcessError:
            return  # reaped by somebody else
        if dead is not None:
            self.status = exit_status(dead)


def _spawn(theirs: net.socket, start_state: StartState) -> int:
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
    signals = [_in_words(start_state.mask), _in_words(start_state.ignored)]
    argv = [sys.executable, "-S", "-s", "-P", "-c", code, str(theirs.fileno()), *signals]
    started = subprocess.Popen(argv, close_fds=False, start_new_session=True)
    started.returncode = 0  # the agent reaps it, not this object
    return started.pid


def _in_words(signums: Iterable[int]) -> str:
    return ",".join(str(int(signum)) for signum in signums)


def _from_words(words: str) -> frozenset[int]:
    return frozenset(int(word) for word in words.split(",") if word)


def _serve(theirs: net.socket, start_state: StartState) -> NoReturn:
    try:
        from phalanx.net.store_service import StoreService
        from phalanx.workers.fork_server import ForkServer

        ForkServer(Link(theirs), StoreService(), start_state).run()
    except BaseException:
        import traceback

        os.write(
            2, f"phalanx: internal error in the fork server\n{traceback.format_exc()}".encode()
        )
    finally:
        os._exit(70)


def _main() -> NoReturn:
    """The program of the fresh interpreter."""
    fd, mask, ignored = sys.argv[1:4]
    start_state = StartState(_from_words(mask), _from_words(ignored))
    theirs = net.socket(fileno=int(fd))
    os.set_inheritable(theirs.fileno(), False)
    _serve(theirs, start_state)
