"""Start one worker: fork, its own session, what phalanx was started with, exec.

Called by the fork server only, which has one thread and holds back all signals but SIGCHLD, so a
plain fork is safe. Whether the exec succeeded comes back through a pipe that closes itself on
exec: nothing read means it runs.
"""

from __future__ import annotations

import os

from phalanx.record import Record
from phalanx.workers.process import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from phalanx.workers.process import StartState

__all__ = ["Spawned", "Stdio", "read_outcome", "spawn"]


class Stdio(Record):
    """What the worker gets as its standard streams: descriptors of ours; None: our own."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    #: They are a terminal, which is to be the worker's own: for the keyboard, and Ctrl-C on it.
    terminal: bool = False


class Spawned(Record):
    pid: int
    #: Read end of the pipe that tells whether the exec succeeded; see `read_outcome`.
    outcome_fd: int


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    start_state: StartState,
    cpus: Sequence[int] = (),
    stdio: Stdio = Stdio(),  # noqa: B008 (it is frozen)
) -> Spawned:
    """Start a worker, on these CPUs if any are named.

    Raises OSError if the system refuses a process or a pipe.
    """
    outcome_fd, report_fd = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, environment, start_state, cpus, stdio, parent, report_fd)
    except OSError:
        os.close(outcome_fd)
        raise
    finally:
        os.close(report_fd)
    return Spawned(pid, outcome_fd)


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    start_state: StartState,
    cpus: Sequence[int],
    stdio: Stdio,
    parent: int,
    report_fd: int,
) -> NoReturn:
    """In the child: never returns, whatever happens."""
    try:
        os.setsid()
        die_with_parent(parent)
        start_state.restore()
        _take(stdio)
        if cpus:
            os.sched_setaffinity(0, cpus)
        os.execvpe(argv[0], tuple(argv), environment)
    except OSError as error:
        os.write(report_fd, str(error.errno or 5).encode())
    except BaseException:
        os.write(report_fd, b"22")
    finally:
        os._exit(127)


def _take(stdio: Stdio) -> None:
    """In the child: its standard streams. What they come from is closed by the exec."""
    for fd, source in enumerate((stdio.stdin, stdio.stdout, stdio.stderr)):
        if source is not None:
            os.dup2(source, fd, inheritable=True)
    if stdio.terminal:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_outcome(outcome_fd: int) -> int | None:
    """None if the program runs, else the errno of why not. Closes the pipe. Blocks until known."""
    try:
        text = os.read(outcome_fd, 16)
    finally:
        os.close(outcome_fd)
    return int(text) if text else None
