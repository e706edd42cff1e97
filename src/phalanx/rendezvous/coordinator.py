"""PURE: the coordinator: membership, rounds, ranks, the bill.

Theory of operation
-------------------
One coordinator decides for the whole job. It is told what has happened on the nodes (`events`) and
answers what each node's member is to do (`effects`).

    FORMING ──complete──▶ RUNNING ──failure, stop request, node failed──▶ STOPPING
     ▲   ▲                 │   │                                          ▲   │
     │   │                 │   └─ failure ─▶ GRACE ── time is up, stop ───┘   │
     │   │                 │ all succeeded    │ all gone                      │ all members gone
     │   │                 ▼                  ▼                               ▼
     │   │              CLOSED ◀──────── not to be repeated ◀──────────── the bill
     │   └── time is up ── PAUSING ◀──────── restart, but not at once ────────┤
     └────────────────────────────────────── restart ─────────────────────────┘

*Forming.* `complete` is a pure question with a reason in its answer. A round starts on all members
in one step: membership and ranks are chosen together, and the ranks are exactly 0 .. W-1.

*Ending a round.* A failed worker, a stop request or a lost node ends it: every member is told to
stop once. The next round starts only when every member has said that nothing of this one is left.
With `--failure-grace` the others are left alone for so long after the first failure, to write down
where they stand; a stop request cuts that short, and it is over when nobody is left to wait for.

*The bill* is made out then. Failures carry their age when told, and are placed at arrival minus
age. The earliest is the cause; it costs one restart, however many failed; the rest, and all who
died because they were stopped, are collateral. A stop that was asked for costs nothing and ends
the job, unless its workers had already failed for good.

*Restarts* are counted here and nowhere else (`restarts`), as are the pauses before them; the count
goes to all workers in the assignment. What cannot heal is not tried again: if in the job's first
round all workers that failed by themselves did so in a way that another try repeats, as by a
missing module, the job is over. A round that failed later had started well once: it is repeated.

*Time* is told, never asked: whoever holds the coordinator sends `Ticked` at `deadline`, or later.

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
    AnnounceGrace,
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
    Explained,
    GroupGone,
    GroupSucceeded,
    NodeFailed,
    NodeJoined,
    StopRequested,
    StoreOffer,
    Ticked,
    WorkerFailed,
)
from phalanx.rendezvous.ranks import NodeSize, number
from phalanx.rendezvous.restarts import Restarts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.job import JobSpec

__all__ = ["Coordinator", "Limits", "Phase", "complete"]

SIGTERM = 15


class Limits(Record):
    """What the coordinator needs of the job's description."""

    min_nodes: int = 1
    max_nodes: int = 1
    max_restarts: int = 0
    #: `max_restarts` is for any stretch of this length; None: for the whole life of the job.
    restart_window_s: float | None = None
    #: What cannot heal is tried again all the same.
    restart_on_always: bool = False
    max_restart_delay_s: float = 30.0
    failure_grace_s: float = 0.0

    @classmethod
    def of(cls, spec: JobSpec) -> Limits:
        """Those of a job's description."""
        return cls(
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            max_restarts=spec.max_restarts,
            restart_window_s=spec.restart_window_s,
            restart_on_always=spec.restart_on_always,
            max_restart_delay_s=spec.max_restart_delay_s,
            failure_grace_s=spec.failure_grace_s,
        )


class Phase(Enum):
    FORMING = "forming"  #: no round; members gather
    RUNNING = "running"  #: a round's workers run, or are being started
    GRACE = "grace"  #: a worker has failed, the others have a while yet
    STOPPING = "stopping"  #: a round is over, waiting until its workers are gone
    PAUSING = "pausing"  #: nothing runs, and the next round is not due yet
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
        #: The next instant at which `Ticked` changes something; None: never by itself.
        self.deadline: float | None = None
        self._limits = limits
        self._restarts = Restarts(
            limits.max_restarts, limits.restart_window_s, limits.max_restart_delay_s
        )
        self._started_at = 0.0  #: when the round was
        self._members: dict[str, _Member] = {}
        self._dropped: set[str] = set()
        #: Failures of the current round, by when they happened.
        self._failures: list[tuple[float, Failure]] = []
        #: What is known of them, by node and local rank; victims of the stop are not in it.
        self._explained: dict[tuple[str, int | None], Explained] = {}
        #: The signal of the first stop request.
        self._stop_signum: int | None = None
        #: When the stop was requested; what fails later is collateral.
        self._stop_at = 0.0
        self._unfit: tuple[tuple[int, str], ...] = ()
        #: How the job ended; None before CLOSED.
        self._outcome: Outcome | None = None

    @property
    def restart_count(self) -> int:
        """How often the worker group has been restarted, or is about to be."""
        return self._restarts.count

    def handle(self, event: CoordinatorEvent, now: float) -> Sequence[CoordinatorEffect]:
        """Take one event in, give back what to do, in order."""
        if self._outcome is not None:
            if isinstance(event, NodeJoined):
                return (CloseJob(event.node, self._outcome),)
            return ()
        match event:
            case NodeJoined():
                return self._joined(event, now)
            case WorkerFailed(_, round_, failure, age_s) if round_ == self.round:
                return self._failed(failure, now - age_s, now)
            case GroupSucceeded(node, round_) if round_ == self.round and node in self._members:
                self._members[node].succeeded = True
                return ()
            case GroupGone(node, round_) if round_ == self.round and node in self._members:
                return self._gone(self._members[node], event, now)
            case NodeFailed(node, reason):
                return self._node_failed(node, reason)
            case StopRequested(node, signum):
                return self._stop_requested(node, signum, now)
            case Ticked() if self.deadline is not None and now >= self.deadline:
                return self._time_is_up(now)
            case _:
                return ()

    def _enter(self, phase: Phase, deadline: float | None = None) -> None:
        self.phase = phase
        self.deadline = deadline

    def _time_is_up(self, now: float) -> Sequence[CoordinatorEffect]:
        if self.phase is Phase.GRACE:
            return self._end_round(StopReason.FAILURE, SIGTERM)
        assert self.phase is Phase.PAUSING
        self._enter(Phase.FORMING)
        return self._form(now)

    # Forming

    def _joined(self, event: NodeJoined, now: float) -> Sequence[CoordinatorEffect]:
        assert event.node not in self._dropped, f"node id {event.node} comes back"
        if event.node in self._members:
            return ()
        self._members[event.node] = _Member(event)
        return self._form(now)

    def _form(self, now: float) -> Sequence[CoordinatorEffect]:
        if self.phase is not Phase.FORMING:
            return ()
        enough, _reason = complete(len(self._members), self._limits)
        return self._start_round(now) if enough else ()

    def _start_round(self, now: float) -> Sequence[CoordinatorEffect]:
        members = list(self._members.values())
        assert not any(member.busy for member in members), "a round starts over its predecessor"
        self._enter(Phase.RUNNING)
        self.round += 1
        if self.round > 0:
            self._restarts.made(now)
        self._started_at = now
        self._failures = []
        self._explained = {}
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

    def _failed(self, failure: Failure, at: float, now: float) -> Sequence[CoordinatorEffect]:
        ours = failure.local_rank is None
        if ours and all(member.succeeded for member in self._members.values()):
            return ()  # the store is gone, but nobody needs it any more
        if any(failure == known for _at, known in self._failures):
            return ()  # told twice
        self._failures.append((at, failure))
        until = at + self._limits.failure_grace_s
        if until <= now or not self._others_may_run():
            return self._end_round(StopReason.FAILURE, SIGTERM)
        if self.phase is not Phase.RUNNING:
            return ()
        self._enter(Phase.GRACE, until)
        return (AnnounceGrace(failure, self._limits.failure_grace_s),)

    def _others_may_run(self) -> bool:
        """Is there a worker that has neither failed nor is part of a group that has succeeded?"""
        left = {m.node: m.size.local_world_size for m in self._members.values() if m.busy}
        for _at, failure in self._failures:
            if failure.local_rank is not None and failure.node in left:
                left[failure.node] -= 1
        return any(count > 0 and not self._members[node].succeeded for node, count in left.items())

    def _end_round(self, reason: StopReason, signum: int) -> Sequence[CoordinatorEffect]:
        if self.phase not in (Phase.RUNNING, Phase.GRACE):
            return ()
        self._enter(Phase.STOPPING)
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
        if self.phase in (Phase.FORMING, Phase.PAUSING):
            outcome = Outcome(OutcomeKind.STOPPED, signum=signum)
            asker = [] if node in self._members else [CloseJob(node, outcome)]
            return [*asker, *self._close(outcome)]  # it may have asked before it could join
        return self._end_round(StopReason.SIGNAL, signum)

    def _node_failed(self, node: str, reason: str) -> Sequence[CoordinatorEffect]:
        self._members.pop(node, None)  # it may have failed before it could join
        self._dropped.add(node)
        outcome = Outcome(OutcomeKind.NODE_FAILED, reason=reason)
        return [CloseJob(node, outcome), *self._close(outcome)]

    def _gone(self, member: _Member, event: GroupGone, now: float) -> Sequence[CoordinatorEffect]:
        if not member.busy:
            return ()  # told twice
        member.busy = False
        member.offer = event.offer
        self._unfit += event.unfit
        for known in event.explained:
            self._explained[event.node, known.local_rank] = known
        if any(other.busy for other in self._members.values()):
            return ()
        return self._bill(now)

    # The bill

    def _bill(self, now: float) -> Sequence[CoordinatorEffect]:
        """The round is over and nothing of it is left: what does it cost, and what comes next?"""
        if self._unfit:
            reason = unfit_reason(self._unfit)
            return self._close(Outcome(OutcomeKind.UNFIT, self._by_time(), reason=reason))
        left = self._restarts.left(now)
        cannot_heal = self._cannot_heal() if left else ""
        if self._failed_for_good(restarts_left=left and not cannot_heal):
            failures = self._by_time()
            return self._close(Outcome(OutcomeKind.FAILED, failures, cannot_heal=cannot_heal))
        if self._stop_signum is not None:
            return self._close(Outcome(OutcomeKind.STOPPED, signum=self._stop_signum))
        if not self._failures:
            return self._close(Outcome(OutcomeKind.SUCCEEDED))
        return self._restart(now)

    def _restart(self, now: float) -> Sequence[CoordinatorEffect]:
        first_at = min(at for at, _failure in self._failures)
        granted = self._restarts.grant(first_at - self._started_at, now)
        announcement = AnnounceRestart(
            cause=self._by_time()[0],
            restart_count=granted.count,
            max_restarts=self._limits.max_restarts,
            delay_s=granted.delay_s,
            window_s=self._limits.restart_window_s,
            in_window=granted.in_window,
        )
        if granted.delay_s > 0:
            self._enter(Phase.PAUSING, now + granted.delay_s)
            return (announcement,)
        self._enter(Phase.FORMING)
        return [announcement, *self._form(now)]

    def _failed_for_good(self, *, restarts_left: bool) -> bool:
        """Had a worker failed by itself, with no restart left, before any stop was asked for?"""
        if not self._failures or restarts_left:
            return False
        first_at = min(at for at, _failure in self._failures)
        return self._stop_signum is None or first_at < self._stop_at

    def _cannot_heal(self) -> str:
        """What it was, in a word, if another try would do no better; empty: it may."""
        if self._limits.restart_on_always or self.round > 0 or not self._failures:
            return ""
        first = self._by_time()[0]
        if first.local_rank is None or any(e.can_heal for e in self._explained.values()):
            return ""  # with a new store, workers may fare better
        known = self._explained.get((first.node, first.local_rank))
        any_known = known or next(iter(self._explained.values()), None)
        return any_known.cause if any_known else ""

    def _by_time(self) -> tuple[Failure, ...]:
        return tuple(failure for _at, failure in sorted(self._failures, key=lambda pair: pair[0]))

    def _close(self, outcome: Outcome) -> Sequence[CoordinatorEffect]:
        self._enter(Phase.CLOSED)
        self._outcome = outcome
        return [CloseJob(node, outcome) for node in self._members]
