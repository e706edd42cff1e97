"""What the fork server reports, as events of the member.

On the way the observer learns what it keeps of a round, and people are told what they may want to
know. No order goes out from here.
"""

from __future__ import annotations

import os

from phalanx.errors import ExitCode, InternalError, StartError
from phalanx.outcome import ExitStatus, Failure
from phalanx.rendezvous.events import StoreOffer
from phalanx.rendezvous.member import ForkServerReady, GroupCleared, ServiceEnded, WorkerEnded
from phalanx.report.words import LIMITS, describe, stopping_line, timeout_line, waiting_line
from phalanx.workers.messages import (
    GroupGone,
    OutputFinished,
    OutputWarning,
    Ready,
    ServiceLost,
    StopTakesTime,
    StopTimedOut,
    StoreRefused,
    Suspended,
    WorkerExited,
    WorkerStarted,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.agent.observer import Observer
    from phalanx.agent.output import Output
    from phalanx.rendezvous.member import Member, MemberEvent
    from phalanx.workers.messages import Message

__all__ = ["Reports"]

SIGINT = 2

#: What serves the workers, for people.
SERVICES = {"store": "the store of the workers", "writer": "the writer of the workers' output"}


class Reports:
    """One for the life of an agent."""

    def __init__(
        self,
        member: Member,
        store_host: str,
        observer: Observer,
        output: Output,
        detail: Callable[[str], None],
    ) -> None:
        """`member`: whose events these are. `detail`: for lines on what is done."""
        #: Of the round that runs: the rank of its local rank 0.
        self.rank_base = 0
        self._node, self._host = member.node, member.host
        self._store_host = store_host
        self._observer = observer
        self._output = output
        self._detail = detail

    def take_in(self, report: Message) -> MemberEvent | None:
        """The event, if it is one for the member. Raises StartError if the store is refused."""
        match report:
            case Ready(store_port):
                return ForkServerReady(StoreOffer(self._store_host, store_port))
            case StoreRefused(port, errno):
                raise _store_refused(port, errno)
            case WorkerExited():
                return self._worker_ended(report)
            case GroupGone(round, store_port, stuck, tails):
                explained = self._observer.round_over(tails, stuck)
                offer = StoreOffer(self._store_host, store_port)
                return GroupCleared(round, offer, stuck, explained)
            case StopTakesTime(_, local_ranks, helpers, left_s):
                cause = self._observer.untold_cause()
                if cause is not None:
                    self._output.say(stopping_line(cause))
                interrupted = self._observer.stop_signal == SIGINT
                self._output.say(
                    waiting_line(local_ranks, helpers, left_s, interrupted=interrupted)
                )
            case StopTimedOut(_, local_ranks, helpers):
                self._observer.killing(local_ranks)
                self._output.say(timeout_line(local_ranks, helpers))
            case OutputWarning(text):
                self._output.say(text)
            case OutputFinished():
                self._output.finished()
            case ServiceLost(round, name, code, signum, errno):
                status = ExitStatus(code, signum, errno=errno)
                return ServiceEnded(round, SERVICES[name], status)
            case Suspended():
                pass  # too late, or we would have waited for it
            case WorkerStarted(_, local_rank, pid):
                self._detail(f"rank {self.rank_base + local_rank} runs, pid {pid}")
            case _:
                raise InternalError(f"the fork server said {report!r}")
        return None

    def _worker_ended(self, exited: WorkerExited) -> WorkerEnded:
        round_, local_rank, status = exited.round, exited.local_rank, exited.status
        rank = self.rank_base + local_rank
        self._detail(f"rank {rank} {describe(status)}")
        if not status.succeeded:
            failure = Failure(self._node, self._host, round_, local_rank, rank, exited.pid, status)
            self._observer.worker_failed(failure, exited.at)
        return WorkerEnded(round_, local_rank, exited.pid, status, exited.at)


def _store_refused(port: int, errno: int) -> StartError:
    if errno in LIMITS:
        return StartError(
            f"the workers' store cannot be opened: {os.strerror(errno)}",
            LIMITS[errno],
            exit_code=ExitCode.SYSTEM,
        )
    if not port:
        return StartError(
            f"no free port for the workers' store: {os.strerror(errno)}",
            "all ports of /proc/sys/net/ipv4/ip_local_port_range are taken; name one outside it",
            exit_code=ExitCode.UNAVAILABLE,
        )
    return StartError(
        f"port {port} cannot be used: {os.strerror(errno)}",
        "name another one; on one node it can be left out, and a free one is chosen",
        exit_code=ExitCode.UNAVAILABLE,
    )
