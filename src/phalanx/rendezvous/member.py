"""PURE: the member: one node's half of the rendezvous.

Theory of operation
-------------------
The member stands between the coordinator, which decides for the job, and the fork server, which
starts and stops this node's workers. It turns reports into what the coordinator is told, and the
coordinator's wishes into orders, and it knows what the local worker group is doing:

    NONE ──StartRound──▶ RUNNING ──StopRound──▶ STOPPING
     ▲                      │ all exited 0         │
     │                      ▼                      │
     │                  SUCCEEDED                  │
     └──── GroupCleared ────┴──────────────────────┘

A signal to the agent becomes a stop request; the second INT kills the local group at once. Ctrl-Z
suspends the node, whatever its group does: what of that may stand still is for the stop machine to
say, which knows best. But while the agent clears what a lost fork server leaves, it is needed. What
the fork server reports of an older round changes nothing. If the fork server is lost, the agent
clears what it leaves; only when that is done is the coordinator told that the node has failed, so
that nobody starts anew beside workers that still live.

Invariants: nothing is started while the group is not NONE · each round's end is told once · a
worker's failure is told before the group's end.
"""

from __future__ import annotations

from enum import Enum

from phalanx.job import JobSpec
from phalanx.outcome import ExitStatus, Failure, Outcome, unfit_reason
from phalanx.record import Record
from phalanx.rendezvous.effects import (
    Assignment,
    CloseJob,
    CoordinatorEffect,
    StartRound,
    StopReason,
    StopRound,
)
from phalanx.rendezvous.events import (
    CoordinatorEvent,
    Explained,
    GroupGone,
    GroupSucceeded,
    NodeFailed,
    NodeJoined,
    StopRequested,
    StoreOffer,
    WorkerFailed,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ClearTree",
    "ForkServerLost",
    "ForkServerReady",
    "GroupCleared",
    "GroupState",
    "KillGroup",
    "Leave",
    "Member",
    "MemberEffect",
    "MemberEvent",
    "ServiceEnded",
    "SignalArrived",
    "StartGroup",
    "StopGroup",
    "SuspendAsked",
    "SuspendNode",
    "Tell",
    "TreeCleared",
    "WorkerEnded",
]

#: Grace of a stop when --shutdown-timeout is not given: after a failure as in torchrun, and on a
#: signal a little less than the 30 s after which schedulers kill.
GRACE_AFTER_FAILURE_S = 30.0
GRACE_ON_SIGNAL_S = 27.0

#: INTs closer together are one: a wrapper hands on what the terminal has sent already.
ONE_PRESS_S = 0.2

SIGINT = 2


class GroupState(Enum):
    NONE = "none"  #: nothing of any round is left here
    RUNNING = "running"  #: workers run, or are being started
    SUCCEEDED = "succeeded"  #: all exited 0, helpers may be left
    STOPPING = "stopping"  #: a stop is out, or the group is dying of itself


# Events, beside the coordinator's StartRound, StopRound and CloseJob


class ForkServerReady(Record):
    offer: StoreOffer


class WorkerEnded(Record):
    """A worker was reaped, or never ran. `at` is on this node's clock."""

    round: int
    local_rank: int
    pid: int
    status: ExitStatus
    at: float


class ServiceEnded(Record):
    """A process of ours that serves the workers ended, or could not be started.

    `what` says which, to follow "error:": "the store of the workers".
    """

    round: int
    what: str
    status: ExitStatus


class GroupCleared(Record):
    """Nothing of the round is left on this node, but what SIGKILL did not end (`unfit`)."""

    round: int
    offer: StoreOffer
    unfit: tuple[tuple[int, str], ...] = ()
    explained: tuple[Explained, ...] = ()


class SignalArrived(Record):
    """One of the signals that stop the job reached the agent.

    `pass_on`: what workers are to get; another one if they were told to ignore this.
    """

    signum: int
    pass_on: int


class SuspendAsked(Record):
    """Somebody pressed Ctrl-Z: the job is to stand still until it is continued."""


class ForkServerLost(Record):
    """It died, or does not answer; `reason` is a sentence."""

    reason: str


class TreeCleared(Record):
    """After ClearTree: nothing that the job started is left, but what SIGKILL did not end."""

    unfit: tuple[tuple[int, str], ...] = ()


MemberEvent = (
    StartRound
    | StopRound
    | CloseJob
    | ForkServerReady
    | WorkerEnded
    | ServiceEnded
    | GroupCleared
    | SignalArrived
    | SuspendAsked
    | ForkServerLost
    | TreeCleared
)

# Effects


class StartGroup(Record):
    assignment: Assignment


class StopGroup(Record):
    round: int
    signum: int
    timeout_s: float


class KillGroup(Record):
    round: int


class SuspendNode(Record):
    """Stand still, the agent included, until somebody continues the agent; then go on."""


class ClearTree(Record):
    """Kill the fork server and all that it leaves; then TreeCleared."""


class Tell(Record):
    """Tell the coordinator."""

    event: CoordinatorEvent


class Leave(Record):
    """The job has ended: clean up, report, exit."""

    outcome: Outcome


MemberEffect = StartGroup | StopGroup | KillGroup | SuspendNode | ClearTree | Tell | Leave


class Member:
    """One node's half. `handle` is the only way to change it; see the module's theory."""

    def __init__(self, node: str, host: str, spec: JobSpec) -> None:
        self.node = node
        self.host = host
        self.state = GroupState.NONE
        self._spec = spec
        self._assignment: Assignment | None = None
        #: Of all rounds started here: an order to start one is obeyed once, however often it comes.
        self._highest_round = -1
        #: Local ranks of the current round that have not exited 0.
        self._unfinished: set[int] = set()
        #: When the first INT arrived.
        self._interrupted_at: float | None = None
        self._lost: str | None = None

    def handle(self, event: MemberEvent | CoordinatorEffect, now: float) -> Sequence[MemberEffect]:
        """Take one event in, give back what to do, in order."""
        match event:
            case ForkServerReady(offer):
                size = self._spec.local_world_size
                return (Tell(NodeJoined(self.node, self.host, size, self._spec.role, offer)),)
            case StartRound(_, assignment):
                return self._start(assignment)
            case StopRound(_, round_, reason, signum):
                return self._stop(round_, reason, signum)
            case WorkerEnded() if event.round == self._round:
                return self._worker_ended(event, now)
            case ServiceEnded(round_, what, status) if round_ == self._round:
                return self._service_ended(what, status)
            case GroupCleared(round_, offer, unfit, explained) if round_ == self._round:
                self.state = GroupState.NONE
                return (Tell(GroupGone(self.node, round_, offer, unfit, explained)),)
            case SignalArrived(signum, pass_on):
                return self._signal_arrived(signum, pass_on, now)
            case SuspendAsked():
                return (SuspendNode(),) if self._lost is None else ()
            case ForkServerLost(reason):
                if self._lost is not None:
                    return ()
                self._lost = reason
                return (ClearTree(),)
            case TreeCleared(unfit):
                self.state = GroupState.NONE
                reasons = [self._lost or "", *([unfit_reason(unfit)] if unfit else [])]
                return (Tell(NodeFailed(self.node, "; ".join(reasons))),)
            case CloseJob(_, outcome):
                return (Leave(outcome),)
            case _:
                return ()

    @property
    def _round(self) -> int | None:
        """The round whose workers may exist here; None if there are none."""
        if self._assignment is None or self.state is GroupState.NONE:
            return None
        return self._assignment.round

    def _start(self, assignment: Assignment) -> Sequence[MemberEffect]:
        if self._lost is not None or assignment.round <= self._highest_round:
            return ()
        assert self.state is GroupState.NONE, f"round {assignment.round} over {self.state}"
        self._highest_round = assignment.round
        self.state = GroupState.RUNNING
        self._assignment = assignment
        self._unfinished = set(range(self._spec.local_world_size))
        return (StartGroup(assignment),)

    def _stop(self, round_: int, reason: StopReason, signum: int) -> Sequence[MemberEffect]:
        if round_ != self._round:
            return ()
        self.state = GroupState.STOPPING
        grace = self._spec.shutdown_timeout_s
        if grace is None:
            on_signal = reason is StopReason.SIGNAL
            grace = GRACE_ON_SIGNAL_S if on_signal else GRACE_AFTER_FAILURE_S
        return (StopGroup(round_, signum, grace),)

    def _worker_ended(self, event: WorkerEnded, now: float) -> Sequence[MemberEffect]:
        if not event.status.succeeded:
            return (Tell(self._failed(event, now)),)
        self._unfinished.discard(event.local_rank)
        if self._unfinished:
            return ()
        if self.state is GroupState.RUNNING:
            self.state = GroupState.SUCCEEDED
        return (Tell(GroupSucceeded(self.node, event.round)),)

    def _failed(self, event: WorkerEnded, now: float) -> WorkerFailed:
        assert self._assignment is not None
        failure = Failure(
            node=self.node,
            host=self.host,
            round=event.round,
            local_rank=event.local_rank,
            rank=self._assignment.rank_base + event.local_rank,
            pid=event.pid,
            status=event.status,
        )
        return WorkerFailed(self.node, event.round, failure, max(0.0, now - event.at))

    def _service_ended(self, what: str, status: ExitStatus) -> Sequence[MemberEffect]:
        """Workers that need it hang or fail without it: the round is over either way."""
        assert self._assignment is not None
        round_ = self._assignment.round
        failure = Failure(self.node, self.host, round_, None, None, 0, status, what=what)
        return (Tell(WorkerFailed(self.node, round_, failure, 0.0)),)

    def _signal_arrived(self, signum: int, pass_on: int, now: float) -> Sequence[MemberEffect]:
        request = Tell(StopRequested(self.node, pass_on))
        if signum != SIGINT:
            return (request,)
        again = self._interrupted_at is not None and now - self._interrupted_at >= ONE_PRESS_S
        if self._interrupted_at is None:
            self._interrupted_at = now
        if again and self._round is not None:
            return (request, KillGroup(self._round))
        return (request,)
