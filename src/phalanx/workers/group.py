"""The workers of a round, as their parent sees them: started, running or not, signalled, gone.

What the system makes of a start is reported to the agent from here, and so is every end. When
workers are stopped, and what becomes of that, is decided in `workers.stop`.
"""

from __future__ import annotations

import os
import select

from phalanx.outcome import ExitStatus
from phalanx.workers.messages import WorkerExited, WorkerStarted
from phalanx.workers.process import boottime, exit_status, signal_child, signal_group
from phalanx.workers.spawn import read_outcome, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from phalanx.workers.messages import Link
    from phalanx.workers.process import StartState
    from phalanx.workers.spawn import Stdio

    #: As in `messages.Start`: local rank, command, environment to add, CPUs.
    WorkerStart = tuple[int, tuple[str, ...], dict[str, str | None], tuple[int, ...]]

__all__ = ["WorkerGroup"]

_EAGAIN = 11


class _Worker:
    """A worker that has been forked and not yet reaped."""

    def __init__(self, local_rank: int, pid: int, outcome_fd: int) -> None:
        self.local_rank = local_rank
        self.pid = pid
        #: Pipe of the exec's outcome; None once read.
        self.outcome_fd: int | None = outcome_fd
        #: Why it never ran.
        self.errno: int | None = None


class WorkerGroup:
    """One for the life of the fork server; it has the workers of one round at a time."""

    def __init__(self, poll: select.poll, agent: Link, start_state: StartState) -> None:
        self._poll = poll
        self._agent = agent
        self._start_state = start_state
        self._round = -1
        self._workers: dict[int, _Worker] = {}  #: by pid
        #: Local ranks of the round's workers that did not exit with 0.
        self.failed: list[int] = []

    @property
    def local_ranks(self) -> dict[int, int]:
        """By pid, of those that have not been reaped."""
        return {pid: worker.local_rank for pid, worker in self._workers.items()}

    # Starting

    def begin(self, round_: int) -> None:
        """A round starts, without any workers yet."""
        self._round = round_
        self.failed = []

    def start(self, starts: Sequence[WorkerStart], stdios: Sequence[Stdio]) -> tuple[int, ...]:
        """Fork workers, up to the first for which the system refuses a process.

        Local ranks of those that have never run, and have been reported so.
        """
        for done, (start, stdio) in enumerate(zip(starts, stdios, strict=True)):
            local_rank, argv, added, cpus = start
            try:
                spawned = spawn(argv, _environment(added), self._start_state, cpus, stdio)
            except OSError as error:
                return self.refuse(starts[done:], error.errno)
            self._workers[spawned.pid] = _Worker(local_rank, spawned.pid, spawned.outcome_fd)
            self._poll.register(spawned.outcome_fd, select.POLLIN)
        return ()

    def refuse(self, starts: Sequence[WorkerStart], errno: int | None) -> tuple[int, ...]:
        """The system has refused what these need. Returns their local ranks."""
        local_ranks = tuple(local_rank for local_rank, *_ in starts)
        for local_rank in local_ranks:
            status = ExitStatus(errno=errno or _EAGAIN)
            self._report_end(local_rank, 0, status, boottime())
        return local_ranks

    def exec_known(self, outcome_fd: int) -> None:
        """This descriptor is readable: the worker whose it is runs, or does not."""
        for worker in self._workers.values():
            if worker.outcome_fd == outcome_fd:
                self._settle_exec(worker)
                return
        # Else it was settled while this turn's events were being handled.

    def _settle_exec(self, worker: _Worker) -> None:
        if worker.outcome_fd is None:
            return
        self._poll.unregister(worker.outcome_fd)
        worker.errno = read_outcome(worker.outcome_fd)
        worker.outcome_fd = None
        if worker.errno is None:
            self._agent.send(WorkerStarted(self._round, worker.local_rank, worker.pid))

    # Running

    def signal(self, local_ranks: Collection[int], signum: int, *, whole_group: bool) -> None:
        """Signal these of them, as far as they live; with `whole_group`, their process groups."""
        send = signal_group if whole_group else signal_child
        for worker in self._workers.values():
            if worker.local_rank in local_ranks:
                send(worker.pid, signum)

    # Ends

    def reaped(self, dead: os.waitid_result, now: float) -> None:
        """One of them has been reaped, at this instant of CLOCK_BOOTTIME."""
        worker = self._workers[dead.si_pid]
        self._settle_exec(worker)
        del self._workers[worker.pid]
        status = exit_status(dead) if worker.errno is None else ExitStatus(errno=worker.errno)
        if not status.succeeded:
            self.failed.append(worker.local_rank)
        self._report_end(worker.local_rank, worker.pid, status, now)

    def _report_end(self, local_rank: int, pid: int, status: ExitStatus, at: float) -> None:
        self._agent.send(
            WorkerExited(
                self._round,
                local_rank,
                pid,
                status.code,
                status.signal,
                status.core_dumped,
                status.errno,
                at,
            )
        )

    def forget(self) -> None:
        """The round is over; those that SIGKILL did not end are of no interest any more."""
        self._workers.clear()


def _environment(added: dict[str, str | None]) -> dict[str, str]:
    environment = dict(os.environ)
    for name, value in added.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment
