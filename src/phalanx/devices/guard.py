"""The process between phalanx and one that it asks something: it leaves nothing behind.

What a driver's library or torch starts may be in a session of its own, its parent dead, and then
nobody could tell it from the children that phalanx has besides. The guard is the parent of one
child only and adopts what that leaves (PR_SET_CHILD_SUBREAPER), so all below the guard belongs to
the question, and nothing else does. When the child has ended, when phalanx says so (SIGTERM) or is
gone, all of it is killed and reaped.

On the last of its descriptors the guard says how the child ended: ";", then exit code, signal, and
whether there was a core. An errno comes before, if the child could not be started.
"""

from __future__ import annotations

import os
import signal

from phalanx.workers.process import (
    adopt_orphans,
    boottime,
    exit_status,
    proc_is_ours,
    reap,
    signal_descendants,
    signal_group,
    wake_with_parent,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

__all__ = ["GONE_AFTER_KILL_S", "guard"]

#: How long killed processes may take to be gone; after that the kernel does not let go of them.
GONE_AFTER_KILL_S = 2.0

#: SIGCONT is what `wake_with_parent` asks for when phalanx is gone.
_AWAITED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT)


def guard(phalanx: int, fds: Sequence[int], become: Callable[[int], NoReturn]) -> NoReturn:
    """In a fork of `phalanx`, all signals blocked: never returns.

    `become`, called in a child with the guard's pid, makes it the one that is asked.
    """
    *outputs, report_fd = fds
    try:
        os.setsid()
        adopt_orphans()
        wake_with_parent(phalanx)
        me = os.getpid()
        child = os.fork()
        if child == 0:
            become(me)
        for fd in outputs:
            os.close(fd)
        while os.getppid() == phalanx and not _is_dead(child):
            if signal.sigwait(_AWAITED) == signal.SIGTERM:
                break
        os.write(report_fd, _end_all(child))
    except OSError as error:
        os.write(report_fd, str(error.errno or 5).encode())
    finally:
        os._exit(0)


def _is_dead(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_all(child: int) -> bytes:
    """Kill and reap the child and all below the guard; how the child ended, for the report.

    No fork can hide from this: when the last of its ancestors dies, what it made is a child of
    ours, and each death of a child of ours wakes us for another look.
    """
    report = b""
    in_proc = proc_is_ours()
    until = boottime() + GONE_AFTER_KILL_S
    signal_group(child, signal.SIGKILL)
    while (left_s := until - boottime()) > 0:
        if in_proc:
            signal_descendants(os.getpid(), signal.SIGKILL, ())
        for dead in reap():
            if dead.si_pid == child:
                status = exit_status(dead)
                report = b";%d %d %d" % (status.code or 0, status.signal or 0, status.core_dumped)
        if not _has_children():
            break
        signal.sigtimedwait(_AWAITED, left_s)
    return report


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
