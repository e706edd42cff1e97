"""PURE: the coordinator: membership, rounds, ranks, the bill.

Theory of operation
-------------------
One coordinator decides for the whole job. It is told what has happened on the nodes (`events`) and
answers what each node's member is to do (`effects`).

    FORMING ──complete──▶ RUNNING ──failure, stop request, node failed──▶ STOPPING
       ▲                     │ all members succeeded and gone                 │
       │                     ▼                                                │ all members gone
       │                  CLOSED ◀──── not to be repeated ────────────────────┤
       └──────────────────────────── restart ─────────────────────────────────┘

*Forming.* `complete` is a pure question with a reason in its answer. A round starts on all members
in one step: membership and ranks are chosen together, and the ranks are exactly 0 .. W-1.

*Ending a round.* A failed worker, a stop request or a lost node ends it: every member is told to
stop once. The next round starts only when every member has said that nothing of this one is left.

*The bill* is made out then. Failures carry their age when told, and are placed at arrival minus
age. The earliest is the cause; it costs one restart, however many failed; the rest, and all who
died because they were stopped, are collateral. A stop that was asked for costs nothing and ends
the job, unless its workers had already failed for good.

*Restarts* are counted here and nowhere else; the count goes to all workers in the assignment.

Messages of an older round change nothing, nor do messages that come twice. A node that joins after
the end is told how the job ended. Invariants, each checked: one round at a time · no node
in a round before its last one's workers are gone · the restart count never exceeds the maximum ·
a node id that was dropped never comes back · after CLOSED nothing is started.

This is the form for one node: members are not lost in silence, and nobody comes late.
"""

from __future__ import annotations

from enum import Enum

from phalanx.outcome import Failure, Outcome, OutcomeKind, unfit_reason
from phalanx.record import Record
from phalanx.rendezvous.effects import (
    AnnounceRestart,
    Assignment,
    CloseJob,
    CoordinatorEffect,
    StartRound,
    StopReason,
    StopRound,
)
from phalanx.rendezvous.events import (
    CoordinatorEvent,
    GroupGone,
    GroupSucceeded,
    NodeFailed,
    NodeJoined,
    StopRequested,
    StoreOffer,
    WorkerFailed,
)
from phalanx.rendezvous.ranks import NodeSize, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Coordinator", "Limits", "Phase", "complete"]

SIGTERM = 15


class Limits(Record):
    """What the coordinator needs of the job's description."""

    min_nodes: int = 1
    max_nodes: int = 1
    max_restarts: int = 0


class Phase(Enum):
    FORMING = "forming"  #: no round; members gather
    RUNNING = "running"  #: a round's workers run, or are being started
    STOPPING = "stopping"  #: a round is over, waiting until its workers are gone
    CLOSED = "closed"  #: the job has ended


class _Member:
    """One node that takes part."""

    def __init__(self, joined: NodeJoined) -> None:
        self.node = joined.node
        self.host = joined.host
        self.size = NodeSize(joined.local_world_size, joined.role)
        self.offer: StoreOffer = joined.offer
        #: Workers of the current round may exist on it.
        self.busy = False
        #: All its workers of the current round exited 0.
        self.succeeded = False


def complete(members: int, limits: Limits) -> tuple[bool, str]:
    """Can a round start with so many ready members? The answer, and why, with the numbers in it."""
    if members >= limits.max_nodes:
        return True, f"all {limits.max_nodes} nodes are there"
    return False, f"waiting for nodes: {members} of {limits.max_nodes} are there"


class Coordinator:
    """Decides for one job. `handle` is the only way to change it; see the module's theory."""

    def __init__(self, limits: Limits) -> None:
        self.phase = Phase.FORMING
        #: The round that runs, or the last one; -1 before the first.
        self.round = -1
        self.restart_count = 0
        self._limits = limits
        self._members: dict[str, _Member] = {}
        self._dropped: set[str] = set()
        #: Failures of the current round, by when they happened.
        self._failures: list[tuple[float, Failure]] = []
        #: The signal of the first stop request.
        self._stop_signum: int | None = None
        #: When the stop was requested; what fails later is collateral.
        self._stop_at = 0.0
        self._unfit: tuple[tuple[int, str], ...] = ()
        #: How the job ended; None before CLOSED.
        self._outcome: Outcome | None = None

    def handle(self, event: CoordinatorEvent, now: float) -> Sequence[CoordinatorEffect]:
        """Take one event in, give back what to do, in order."""
        if self._outcome is not None:
            late = isinstance(event, NodeJoined)
            return (CloseJob(event.node, self._outcome),) if late else ()
        match event:
            case NodeJoined():
                return self._joined(event)
            case WorkerFailed(_, round_, failure, age_s) if round_ == self.round:
                return self._failed(failure, now - age_s)
            case GroupSucceeded(node, round_) if round_ == self.round and node in self._members:
                self._members[node].succeeded = True
                return ()
            case GroupGone(node, round_) if round_ == self.round and node in self._members:
                return self._gone(self._members[node], event)
            case NodeFailed(node, reason):
                return self._node_failed(node, reason)
            case StopRequested(node, signum):
                return self._stop_requested(node, signum, now)
            case _:
                return ()

    # Forming

    def _joined(self, event: NodeJoined) -> Sequence[CoordinatorEffect]:
        assert event.node not in self._dropped, f"node id {event.node} comes back"
        if event.node in self._members:
            return ()
        self._members[event.node] = _Member(event)
        return self._form()

    def _form(self) -> Sequence[CoordinatorEffect]:
        if self.phase is not Phase.FORMING:
            return ()
        enough, _reason = complete(len(self._members), self._limits)
        return self._start_round() if enough else ()

    def _start_round(self) -> Sequence[CoordinatorEffect]:
        members = list(self._members.values())
        assert not any(member.busy for member in members), "a round starts over its predecessor"
        self.phase = Phase.RUNNING
        self.round += 1
        self._failures = []
        effects: list[CoordinatorEffect] = []
        store = members[0].offer
        for member, ranks in zip(members, number([m.size for m in members]), strict=True):
            member.busy = True
            member.succeeded = False
            assignment = Assignment(
                round=self.round,
                restart_count=self.restart_count,
                group_rank=ranks.group_rank,
                group_world_size=len(members),
                rank_base=ranks.rank_base,
                world_size=ranks.world_size,
                role_rank_base=ranks.role_rank_base,
                role_world_size=ranks.role_world_size,
                master_addr=store.host,
                master_port=store.port,
            )
            effects.append(StartRound(member.node, assignment))
        return effects

    # Ending a round

    def _failed(self, failure: Failure, at: float) -> Sequence[CoordinatorEffect]:
        ours = failure.local_rank is None
        if ours and all(member.succeeded for member in self._members.values()):
            return ()  # the store is gone, but nobody needs it any more
        if any(failure == known for _at, known in self._failures):
            return ()  # told twice
        self._failures.append((at, failure))
        return self._end_round(StopReason.FAILURE, SIGTERM)

    def _end_round(self, reason: StopReason, signum: int) -> Sequence[CoordinatorEffect]:
        if self.phase is not Phase.RUNNING:
            return ()
        self.phase = Phase.STOPPING
        return [
            StopRound(member.node, self.round, reason, signum)
            for member in self._members.values()
            if member.busy
        ]

    def _stop_requested(self, node: str, signum: int, now: float) -> Sequence[CoordinatorEffect]:
        if self._stop_signum is not None:
            return ()
        self._stop_signum = signum
        self._stop_at = now
        if self.phase is Phase.FORMING:
            outcome = Outcome(OutcomeKind.STOPPED, signum=signum)
            asker = [] if node in self._members else [CloseJob(node, outcome)]
            return [*asker, *self._close(outcome)]  # it may have asked before it could join
        return self._end_round(StopReason.SIGNAL, signum)

    def _node_failed(self, node: str, reason: str) -> Sequence[CoordinatorEffect]:
        self._members.pop(node, None)  # it may have failed before it could join
        self._dropped.add(node)
        outcome = Outcome(OutcomeKind.NODE_FAILED, reason=reason)
        return [CloseJob(node, outcome), *self._close(outcome)]

    def _gone(self, member: _Member, event: GroupGone) -> Sequence[CoordinatorEffect]:
        if not member.busy:
            return ()  # told twice
        member.busy = False
        member.offer = event.offer
        self._unfit += event.unfit
        if any(other.busy for other in self._members.values()):
            return ()
        return self._bill()

    # The bill

    def _bill(self) -> Sequence[CoordinatorEffect]:
        """The round is over and nothing of it is left: what does it cost, and what comes next?"""
        if self._unfit:
            reason = unfit_reason(self._unfit)
            return self._close(Outcome(OutcomeKind.UNFIT, self._by_time(), reason=reason))
        if self._failed_for_good():
            return self._close(Outcome(OutcomeKind.FAILED, self._by_time()))
        if self._stop_signum is not None:
            return self._close(Outcome(OutcomeKind.STOPPED, signum=self._stop_signum))
        if not self._failures:
            return self._close(Outcome(OutcomeKind.SUCCEEDED))
        self.restart_count += 1
        assert self.restart_count <= self._limits.max_restarts
        self.phase = Phase.FORMING
        cause = self._by_time()[0]
        announcement = AnnounceRestart(cause, self.restart_count, self._limits.max_restarts)
        return [announcement, *self._form()]

    def _failed_for_good(self) -> bool:
        """Had a worker failed by itself, with no restart left, before any stop was asked for?"""
        if not self._failures or self.restart_count < self._limits.max_restarts:
            return False
        first_at = min(at for at, _failure in self._failures)
        return self._stop_signum is None or first_at < self._stop_at

    def _by_time(self) -> tuple[Failure, ...]:
        return tuple(failure for _at, failure in sorted(self._failures, key=lambda pair: pair[0]))

    def _close(self, outcome: Outcome) -> Sequence[CoordinatorEffect]:
        self.phase = Phase.CLOSED
        self._outcome = outcome
        return [CloseJob(node, outcome) for node in self._members]
