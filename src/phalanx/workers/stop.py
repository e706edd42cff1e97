"""PURE: the stop machine, one local worker group from its first worker to its last helper.

Theory of operation
-------------------
The fork server feeds this machine what it sees and does what it answers. A group has *workers*
(the processes we started, by local rank), *orphans* (descendants of workers that have become
direct children of the fork server, because what started them is gone) and *helpers* (all
descendants that are not workers: orphans, and those still below a living worker).

    NONE ──GroupStarted──▶ RUNNING ──StopOrdered, or the last worker gone──▶ STOPPING
                              │                                                │ time is up,
                              └───────────── KillOrdered, AgentGone ──────────▶│ KillOrdered,
                                                                               ▼ AgentGone
    NONE ◀──────────────── nothing left, or given up after 10 s ──────────── KILLING

STOPPING is staged, on every path but the kill:

1. The stop signal goes to the workers that live (to their process groups with `--stop-signal-to=
   group`), and to the orphans that no living worker owns. A worker that saves keeps its data
   loaders. What outlives its worker arrives as an orphan and gets the signal then, once.
2. Near the end (3 s before it, or half-way if the whole is shorter than 6 s) TERM to all helpers.
3. At the end, KILL to everything, again whenever an orphan turns up, until nothing is left.
   A stop that takes longer than 3 s is reported once: a person should know what is waited for.
4. What is not gone 10 s after the first KILL is stuck in the kernel. It runs no more user code:
   the group counts as gone and the node as unfit.

When the last worker is gone, helpers that still run have had their time: the same stages begin by
themselves, with TERM. Until then helpers of a worker that exited are left alone.

A second order while STOPPING only brings the end forward. Orders for another round are ignored:
they are late. The death of the agent is a KillOrdered after which the fork server leaves.

A RUNNING group can be *suspended*, and continued (Ctrl-Z and `fg`). A stop that has begun goes on:
what is stopping is not suspended, and what is suspended is continued when its stop begins, once the
signal for that is out. So no timeout of a stop runs while those that it is for stand still by
order of ours. It does run if all is stopped from outside, the fork server included, as when this
job runs within another one that is suspended.

Invariants: `ReportGone` comes once per group, and only when no worker and no orphan is left or the
10 s have passed · an orphan gets the stop signal at most once · no stage is entered twice · what
is suspended is RUNNING · each `SuspendTree` is followed by one `ContinueTree`, or by the end.
"""

from __future__ import annotations

from enum import Enum

from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AgentGone",
    "ChildrenSeen",
    "ContinueOrdered",
    "ContinueTree",
    "Effect",
    "Event",
    "GroupStarted",
    "KillOrdered",
    "KillTree",
    "Leave",
    "Orphan",
    "Phase",
    "ReportGone",
    "ReportKilling",
    "ReportWaiting",
    "SignalHelpers",
    "SignalOrphans",
    "SignalWorkers",
    "StopMachine",
    "StopOrdered",
    "SuspendOrdered",
    "SuspendTree",
    "Ticked",
    "WorkerGone",
]

#: Seconds before the end at which helpers get TERM, if the whole time allows it.
HELPERS_BEFORE_END_S = 3.0
#: Seconds after which a stop that goes on is reported, if as many are left again.
WAITING_AFTER_S = 3.0
#: Seconds after SIGKILL at which a process counts as stuck in the kernel.
STUCK_AFTER_S = 10.0

SIGTERM = 15


class Phase(Enum):
    NONE = "none"  #: no group
    RUNNING = "running"  #: workers live, nothing asks them to stop
    STOPPING = "stopping"  #: the stop signal is out, the end has an instant
    KILLING = "killing"  #: KILL is out, waiting until nothing is left


class Orphan(Record):
    """A direct child of the fork server that is no worker. `owner`: local rank, None unknown."""

    pid: int
    owner: int | None


# Events


class GroupStarted(Record):
    """Workers of this round are being started. `leftover_timeout_s`: for helpers, at the end."""

    round: int
    local_ranks: tuple[int, ...]
    whole_group: bool
    leftover_timeout_s: float


class WorkerGone(Record):
    """A worker has been reaped, or could not be started."""

    local_rank: int


class ChildrenSeen(Record):
    """All orphans there are now. Sent after every reaping."""

    orphans: tuple[Orphan, ...]


class StopOrdered(Record):
    round: int
    signum: int
    timeout_s: float


class KillOrdered(Record):
    round: int


class SuspendOrdered(Record):
    """The terminal's Ctrl-Z: what runs is to stand still."""


class ContinueOrdered(Record):
    """And is to go on."""


class AgentGone(Record):
    """The agent's end of the socket is closed: it is dead, or done."""


class Ticked(Record):
    """Time has passed; nothing else has happened."""


Event = (
    GroupStarted
    | WorkerGone
    | ChildrenSeen
    | StopOrdered
    | KillOrdered
    | SuspendOrdered
    | ContinueOrdered
    | AgentGone
    | Ticked
)

# Effects


class SignalWorkers(Record):
    """Signal these workers; each one's whole process group if `whole_group`."""

    local_ranks: tuple[int, ...]
    signum: int
    whole_group: bool


class SignalOrphans(Record):
    pids: tuple[int, ...]
    signum: int


class SignalHelpers(Record):
    """Signal every descendant that is not a worker."""

    signum: int


class KillTree(Record):
    """SIGKILL to everything below the fork server but its services.

    `whole_tree`: to what is further down as well; later, when what is left arrives, to direct
    children only.
    """

    whole_tree: bool


class SuspendTree(Record):
    """SIGSTOP to everything below the fork server but its services, until all stand still."""


class ContinueTree(Record):
    """SIGCONT to everything below the fork server but its services."""


class ReportWaiting(Record):
    """The stop is taking its time: these workers and helpers have up to `left_s` seconds more."""

    round: int
    local_ranks: tuple[int, ...]
    helpers: int
    left_s: float


class ReportKilling(Record):
    """The time to stop is up. `local_ranks` still live; `helpers` orphans do."""

    round: int
    local_ranks: tuple[int, ...]
    helpers: int


class ReportGone(Record):
    """Nothing of the round is left; or, with `stuck`, what is left runs no more user code."""

    round: int
    stuck: bool


class Leave(Record):
    """Nothing is left and nobody is there to serve: exit."""


Effect = (
    SignalWorkers
    | SignalOrphans
    | SignalHelpers
    | KillTree
    | SuspendTree
    | ContinueTree
    | ReportWaiting
    | ReportKilling
    | ReportGone
    | Leave
)


class StopMachine:
    """One local worker group. `handle` is the only way to change it; see the module's theory."""

    def __init__(self) -> None:
        self.phase = Phase.NONE
        self.round = -1
        #: Local ranks of the workers that have not been reaped.
        self.alive: set[int] = set()
        self._orphans: tuple[Orphan, ...] = ()
        #: Orphans that have had the stop signal. Only of those that are there: pids come again.
        self._told: set[int] = set()
        #: Stop signals go to whole process groups.
        self.whole_group = False
        self._suspended = False
        self._leftover_timeout_s = 0.0
        self._signum = SIGTERM
        #: Instants; None: not in that stage's wait.
        self._helpers_at: float | None = None
        self._waiting_at: float | None = None
        self._kill_at: float | None = None
        self._stuck_at: float | None = None
        self._agent_gone = False

    @property
    def deadline(self) -> float | None:
        """The next instant at which `Ticked` changes something; None: never by itself."""
        instants = (self._waiting_at, self._helpers_at, self._kill_at, self._stuck_at)
        return min((instant for instant in instants if instant is not None), default=None)

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Take one event in, give back what to do, in order."""
        match event:
            case GroupStarted():
                return self._started(event)
            case WorkerGone(local_rank):
                self.alive.discard(local_rank)
                return ()  # ChildrenSeen follows, and decides with both known
            case ChildrenSeen(orphans):
                self._orphans = orphans
                self._told.intersection_update(orphan.pid for orphan in orphans)
                return self._children_seen(now)
            case StopOrdered(round_, signum, timeout_s):
                return self._stop(signum, timeout_s, now) if self._concerns(round_) else ()
            case KillOrdered(round_):
                return self._kill(now) if self._concerns(round_) else ()
            case SuspendOrdered():
                return self._suspend()
            case ContinueOrdered():
                return self._continue()
            case AgentGone():
                self._agent_gone = True
                return (Leave(),) if self.phase is Phase.NONE else self._kill(now)
            case Ticked():
                return self._ticked(now)

    def _suspend(self) -> Sequence[Effect]:
        if self.phase is not Phase.RUNNING or self._suspended:
            return ()
        self._suspended = True
        return (SuspendTree(),)

    def _continue(self) -> Sequence[Effect]:
        if not self._suspended:
            return ()
        self._suspended = False
        return (ContinueTree(),)

    def _concerns(self, round_: int) -> bool:
        return self.phase is not Phase.NONE and round_ == self.round

    def _started(self, event: GroupStarted) -> Sequence[Effect]:
        assert self.phase is Phase.NONE, f"round {event.round} started over round {self.round}"
        self.phase = Phase.RUNNING
        self.round = event.round
        self.alive = set(event.local_ranks)
        self._orphans = ()
        self._told = set()
        self.whole_group = event.whole_group
        self._leftover_timeout_s = event.leftover_timeout_s
        return ()

    def _children_seen(self, now: float) -> Sequence[Effect]:
        if self.phase is Phase.NONE:
            return ()
        if not self.alive and not self._orphans:
            return self._gone(stuck=False)
        if self.phase is Phase.KILLING:
            return (KillTree(whole_tree=False),)
        if self.phase is Phase.RUNNING and not self.alive:
            return self._stop(SIGTERM, self._leftover_timeout_s, now)
        return self._tell_orphans() if self.phase is Phase.STOPPING else ()

    def _stop(self, signum: int, timeout_s: float, now: float) -> Sequence[Effect]:
        if self.phase is Phase.KILLING:
            return ()
        end = now + timeout_s
        if self.phase is Phase.STOPPING:
            if self._kill_at is not None and end < self._kill_at:
                helpers_told = self._helpers_at is None
                self._set_stages(timeout_s, now)
                if helpers_told:
                    self._helpers_at = None
            return self._ticked(now)
        self.phase = Phase.STOPPING
        self._signum = signum
        self._set_stages(timeout_s, now)
        if timeout_s >= 2 * WAITING_AFTER_S:
            self._waiting_at = now + WAITING_AFTER_S
        first: list[Effect] = []
        if self.alive:
            first.append(SignalWorkers(tuple(sorted(self.alive)), signum, self.whole_group))
        return [*first, *self._tell_orphans(), *self._continue(), *self._ticked(now)]

    def _set_stages(self, timeout_s: float, now: float) -> None:
        self._kill_at = now + timeout_s
        self._helpers_at = now + max(timeout_s - HELPERS_BEFORE_END_S, timeout_s / 2)

    def _tell_orphans(self) -> Sequence[Effect]:
        """The stop signal for orphans that no living worker owns; unknown ones wait for all."""
        due = tuple(
            orphan.pid
            for orphan in self._orphans
            if orphan.pid not in self._told
            and (not self.alive or (orphan.owner is not None and orphan.owner not in self.alive))
        )
        self._told.update(due)
        return (SignalOrphans(due, self._signum),) if due else ()

    def _ticked(self, now: float) -> Sequence[Effect]:
        if self._kill_at is not None and now >= self._kill_at:
            killing = ReportKilling(self.round, tuple(sorted(self.alive)), len(self._orphans))
            return [killing, *self._kill(now)]
        if self._waiting_at is not None and self._kill_at is not None and now >= self._waiting_at:
            self._waiting_at = None
            left_s = self._kill_at - now
            alive = tuple(sorted(self.alive))
            return (ReportWaiting(self.round, alive, len(self._orphans), left_s),)
        if self._helpers_at is not None and now >= self._helpers_at:
            self._helpers_at = None
            return (SignalHelpers(SIGTERM),)
        if self._stuck_at is not None and now >= self._stuck_at:
            return self._gone(stuck=True)
        return ()

    def _kill(self, now: float) -> Sequence[Effect]:
        if self.phase is Phase.KILLING:
            return ()
        self.phase = Phase.KILLING
        self._suspended = False  # KILL needs nobody to be awake
        self._waiting_at = self._helpers_at = self._kill_at = None
        self._stuck_at = now + STUCK_AFTER_S
        return (KillTree(whole_tree=True),)

    def _gone(self, *, stuck: bool) -> Sequence[Effect]:
        self.phase = Phase.NONE
        self._suspended = False
        self._waiting_at = self._helpers_at = self._kill_at = self._stuck_at = None
        report = ReportGone(self.round, stuck)
        return (report, Leave()) if self._agent_gone else (report,)
