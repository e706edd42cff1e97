"""The stop machine: its rules as transcripts, and its invariants over random histories.

A transcript is events and the effects that must come back, line by line. The random histories are
driven by a small world (`World`) that behaves as the fork server and the kernel do; after every
event the invariants of the module's theory are checked, by code that shares nothing with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.workers.stop import (
    HELPERS_BEFORE_END_S,
    STUCK_AFTER_S,
    AgentGone,
    ChildrenSeen,
    ContinueOrdered,
    ContinueTree,
    Effect,
    Event,
    GroupStarted,
    KillOrdered,
    KillTree,
    Leave,
    Orphan,
    Phase,
    ReportGone,
    ReportKilling,
    ReportWaiting,
    SignalHelpers,
    SignalOrphans,
    SignalWorkers,
    StopMachine,
    StopOrdered,
    SuspendOrdered,
    SuspendTree,
    Ticked,
    WorkerGone,
)

INT, TERM = 2, 15
LEFTOVER_S = 30.0


def started(*local_ranks: int, whole_group: bool = False, round: int = 0) -> GroupStarted:
    return GroupStarted(round, local_ranks, whole_group, LEFTOVER_S)


def seen(*orphans: tuple[int, int | None]) -> ChildrenSeen:
    return ChildrenSeen(tuple(Orphan(pid, owner) for pid, owner in orphans))


def play(*lines: tuple[float, Event, list[Effect]]) -> StopMachine:
    """Feed (now, event, the effects that must follow) to a fresh machine."""
    machine = StopMachine()
    for now, event, wanted in lines:
        assert list(machine.handle(event, now)) == wanted, f"at {now}: {event}"
    return machine


# The rules


def test_group_whose_workers_exit_is_gone_when_the_last_is_reaped() -> None:
    """No signal, no wait: the report comes with the last reaping."""
    machine = play(
        (0, started(0, 1), []),
        (1, WorkerGone(1), []),
        (1, seen(), []),
        (2, WorkerGone(0), []),
        (2, seen(), [ReportGone(0, stuck=False)]),
    )

    assert machine.phase is Phase.NONE
    assert machine.deadline is None


def test_stop_signals_the_workers_and_leaves_their_helpers_alone() -> None:
    """Helpers of living workers are needed while they save; they hear nothing till near the end."""
    play(
        (0, started(0, 1), []),
        (5, seen((70, 0)), []),
        (10, StopOrdered(0, TERM, 30.0), [SignalWorkers((0, 1), TERM, False)]),
        (11, seen((70, 0)), []),
        (13, Ticked(), [ReportWaiting(0, (0, 1), 1, 27.0)]),
        (36.9, Ticked(), []),
        (37, Ticked(), [SignalHelpers(TERM)]),
        (37.1, Ticked(), []),
    )


@pytest.mark.parametrize("whole_group", [False, True])
def test_stop_signal_goes_to_whole_groups_only_if_asked(whole_group: bool) -> None:
    play(
        (0, started(0, whole_group=whole_group), []),
        (1, StopOrdered(0, INT, 30.0), [SignalWorkers((0,), INT, whole_group)]),
    )


def test_only_workers_that_live_get_the_stop_signal() -> None:
    play(
        (0, started(0, 1, 2), []),
        (1, WorkerGone(1), []),
        (1, seen(), []),
        (2, StopOrdered(0, TERM, 30.0), [SignalWorkers((0, 2), TERM, False)]),
    )


def test_orphans_of_dead_workers_get_the_stop_signal_with_the_workers() -> None:
    play(
        (0, started(0, 1), []),
        (1, WorkerGone(1), []),
        (1, seen((70, 1), (71, 0), (72, None)), []),
        (
            2,
            StopOrdered(0, INT, 30.0),
            [SignalWorkers((0,), INT, False), SignalOrphans((70,), INT)],
        ),
    )


def test_what_outlives_its_worker_gets_the_stop_signal_then_and_once() -> None:
    """It has the rest of the grace: the end does not move."""
    machine = play(
        (0, started(0, 1), []),
        (1, StopOrdered(0, INT, 30.0), [SignalWorkers((0, 1), INT, False)]),
        (4, Ticked(), [ReportWaiting(0, (0, 1), 0, 27.0)]),
        (4, WorkerGone(1), []),
        (4, seen((70, 1)), [SignalOrphans((70,), INT)]),
        (5, seen((70, 1)), []),
        (6, seen((70, 1), (71, 1)), [SignalOrphans((71,), INT)]),
    )

    assert machine.deadline == 31 - HELPERS_BEFORE_END_S


def test_orphan_of_an_unknown_worker_waits_until_no_worker_lives() -> None:
    """It may be a helper of one that still saves."""
    play(
        (0, started(0, 1), []),
        (1, StopOrdered(0, TERM, 30.0), [SignalWorkers((0, 1), TERM, False)]),
        (2, WorkerGone(0), []),
        (2, seen((70, None)), []),
        (3, WorkerGone(1), []),
        (3, seen((70, None)), [SignalOrphans((70,), TERM)]),
    )


def test_new_orphan_with_the_pid_of_one_that_is_gone_is_told_too() -> None:
    """At most once means once per process, not per pid: pids are used again."""
    play(
        (0, started(0, 1), []),
        (1, WorkerGone(1), []),
        (1, seen((70, 1)), []),
        (
            2,
            StopOrdered(0, TERM, 30.0),
            [SignalWorkers((0,), TERM, False), SignalOrphans((70,), TERM)],
        ),
        (3, seen(), []),
        (4, seen((70, 1)), [SignalOrphans((70,), TERM)]),
    )


def test_helpers_that_outlive_all_workers_are_stopped_by_themselves() -> None:
    """TERM when the last worker is gone, and the usual time; before that they are left alone."""
    play(
        (0, started(0, 1), []),
        (1, WorkerGone(0), []),
        (1, seen((70, 0)), []),
        (9, seen((70, 0)), []),
        (10, WorkerGone(1), []),
        (10, seen((70, 0)), [SignalOrphans((70,), TERM)]),
        (13, Ticked(), [ReportWaiting(0, (), 1, LEFTOVER_S - 3)]),
        (10 + LEFTOVER_S - HELPERS_BEFORE_END_S, Ticked(), [SignalHelpers(TERM)]),
        (10 + LEFTOVER_S, Ticked(), [ReportKilling(0, (), 1), KillTree(whole_tree=True)]),
        (41, seen(), [ReportGone(0, stuck=False)]),
    )


def test_at_the_end_of_the_timeout_everything_is_killed_and_that_is_said() -> None:
    machine = play(
        (0, started(0, 1), []),
        (1, StopOrdered(0, TERM, 10.0), [SignalWorkers((0, 1), TERM, False)]),
        (4, Ticked(), [ReportWaiting(0, (0, 1), 0, 7.0)]),
        (8, Ticked(), [SignalHelpers(TERM)]),
        (9, WorkerGone(1), []),
        (9, seen((70, 0)), []),
        (10.9, Ticked(), []),
        (11, Ticked(), [ReportKilling(0, (0,), 1), KillTree(whole_tree=True)]),
    )

    assert machine.phase is Phase.KILLING


def test_a_stop_that_takes_long_is_reported_once() -> None:
    """After 3 s, with who is waited for and how long; not if hardly any time is left then."""
    play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 6.0), [SignalWorkers((0,), TERM, False)]),
        (2.9, Ticked(), []),
        (3, Ticked(), [ReportWaiting(0, (0,), 0, 3.0)]),
        (3, Ticked(), [SignalHelpers(TERM)]),
        (5, Ticked(), []),
    )
    play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 5.9), [SignalWorkers((0,), TERM, False)]),
        (3, Ticked(), [SignalHelpers(TERM)]),
        (4, Ticked(), []),
    )


def test_orphan_that_turns_up_during_the_kill_is_killed() -> None:
    """Direct children only: they cannot be missed, and what is below them arrives by itself."""
    play(
        (0, started(0), []),
        (1, KillOrdered(0), [KillTree(whole_tree=True)]),
        (1, WorkerGone(0), []),
        (1, seen((70, 0)), [KillTree(whole_tree=False)]),
        (1, seen((71, 0)), [KillTree(whole_tree=False)]),
        (1, seen(), [ReportGone(0, stuck=False)]),
    )


def test_a_short_stop_tells_the_helpers_half_way() -> None:
    play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 4.0), [SignalWorkers((0,), TERM, False)]),
        (1.9, Ticked(), []),
        (2, Ticked(), [SignalHelpers(TERM)]),
        (4, Ticked(), [ReportKilling(0, (0,), 0), KillTree(whole_tree=True)]),
    )


def test_a_stop_without_time_signals_and_kills_in_one_step() -> None:
    play(
        (0, started(0), []),
        (
            1,
            StopOrdered(0, TERM, 0.0),
            [
                SignalWorkers((0,), TERM, False),
                ReportKilling(0, (0,), 0),
                KillTree(whole_tree=True),
            ],
        ),
    )


def test_a_second_stop_with_less_time_brings_the_end_forward() -> None:
    """And nobody gets the signal again."""
    play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 30.0), [SignalWorkers((0,), TERM, False)]),
        (3, Ticked(), [ReportWaiting(0, (0,), 0, 27.0)]),
        (5, StopOrdered(0, INT, 8.0), []),
        (10, Ticked(), [SignalHelpers(TERM)]),
        (13, Ticked(), [ReportKilling(0, (0,), 0), KillTree(whole_tree=True)]),
    )


def test_a_second_stop_with_more_time_changes_nothing() -> None:
    machine = play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 30.0), [SignalWorkers((0,), TERM, False)]),
        (3, Ticked(), [ReportWaiting(0, (0,), 0, 27.0)]),
        (5, StopOrdered(0, TERM, 30.0), []),
    )

    assert machine.deadline == 27


def test_helpers_that_have_been_told_are_not_told_again_by_a_second_stop() -> None:
    """No stage is entered twice, even if the end is brought forward after it."""
    play(
        (0, started(0), []),
        (0, StopOrdered(0, TERM, 30.0), [SignalWorkers((0,), TERM, False)]),
        (3, Ticked(), [ReportWaiting(0, (0,), 0, 27.0)]),
        (27, Ticked(), [SignalHelpers(TERM)]),
        (27.5, StopOrdered(0, TERM, 2.0), []),
        (28.5, Ticked(), []),
        (29.5, Ticked(), [ReportKilling(0, (0,), 0), KillTree(whole_tree=True)]),
    )


def test_kill_order_skips_the_stages() -> None:
    play(
        (0, started(0), []),
        (0, StopOrdered(0, INT, 30.0), [SignalWorkers((0,), INT, False)]),
        (1, KillOrdered(0), [KillTree(whole_tree=True)]),
        (1, KillOrdered(0), []),
        (2, StopOrdered(0, INT, 30.0), []),
        (2, Ticked(), []),
    )


@pytest.mark.parametrize("order", [StopOrdered(4, TERM, 1.0), KillOrdered(4)])
def test_orders_for_another_round_are_ignored(order: Event) -> None:
    play(
        (0, order, []),
        (0, started(0, round=5), []),
        (1, order, []),
        (2, WorkerGone(0), []),
        (2, seen(), [ReportGone(5, stuck=False)]),
        (3, order, []),
    )


def test_what_cannot_be_killed_counts_as_gone_after_ten_seconds() -> None:
    machine = play(
        (0, started(0, 1), []),
        (1, KillOrdered(0), [KillTree(whole_tree=True)]),
        (1, WorkerGone(1), []),
        (1, seen(), [KillTree(whole_tree=False)]),
        (1 + STUCK_AFTER_S - 0.1, Ticked(), []),
        (1 + STUCK_AFTER_S, Ticked(), [ReportGone(0, stuck=True)]),
        (20, WorkerGone(0), []),
        (20, seen(), []),
    )

    assert machine.deadline is None


def test_death_of_the_agent_kills_the_group_and_then_the_fork_server_leaves() -> None:
    play(
        (0, started(0), []),
        (1, AgentGone(), [KillTree(whole_tree=True)]),
        (1, WorkerGone(0), []),
        (1, seen(), [ReportGone(0, stuck=False), Leave()]),
    )


def test_death_of_the_agent_during_a_kill_ends_with_leaving_too() -> None:
    play(
        (0, started(0), []),
        (1, KillOrdered(0), [KillTree(whole_tree=True)]),
        (1, AgentGone(), []),
        (11, Ticked(), [ReportGone(0, stuck=True), Leave()]),
    )


def test_without_a_group_the_fork_server_leaves_at_once() -> None:
    play((0, AgentGone(), [Leave()]))


def test_worker_that_never_ran_counts_like_one_that_is_gone() -> None:
    play(
        (0, started(0, 1), []),
        (0, WorkerGone(0), []),
        (0, WorkerGone(1), []),
        (0, seen(), [ReportGone(0, stuck=False)]),
    )


def test_the_next_round_starts_with_nothing_of_the_last() -> None:
    """Orphans told, signal, instants: all of it is of one group."""
    play(
        (0, started(0), []),
        (1, StopOrdered(0, INT, 30.0), [SignalWorkers((0,), INT, False)]),
        (2, WorkerGone(0), []),
        (2, seen((70, 0)), [SignalOrphans((70,), INT)]),
        (3, seen(), [ReportGone(0, stuck=False)]),
        (4, started(0, 1, round=1), []),
        (40, Ticked(), []),
        (41, WorkerGone(0), []),
        (41, seen((70, 0)), []),
        (
            42,
            StopOrdered(1, TERM, 30.0),
            [SignalWorkers((1,), TERM, False), SignalOrphans((70,), TERM)],
        ),
    )


# Ctrl-Z


def test_a_running_group_is_suspended_and_continued_as_often_as_asked() -> None:
    machine = play(
        (0, started(0), []),
        (1, SuspendOrdered(), [SuspendTree()]),
        (2, SuspendOrdered(), []),
        (3, ContinueOrdered(), [ContinueTree()]),
        (4, ContinueOrdered(), []),
        (5, SuspendOrdered(), [SuspendTree()]),
        (6, ContinueOrdered(), [ContinueTree()]),
    )

    assert machine.deadline is None


def test_without_a_group_there_is_nothing_to_suspend() -> None:
    play(
        (0, SuspendOrdered(), []),
        (1, ContinueOrdered(), []),
        (2, started(0), []),
        (3, ContinueOrdered(), []),
    )


def test_a_stop_that_has_begun_is_not_suspended() -> None:
    play(
        (0, started(0), []),
        (1, StopOrdered(0, TERM, 4.0), [SignalWorkers((0,), TERM, False)]),
        (2, SuspendOrdered(), []),
        (3, ContinueOrdered(), []),
        (3, Ticked(), [SignalHelpers(TERM)]),
        (5, Ticked(), [ReportKilling(0, (0,), 0), KillTree(whole_tree=True)]),
        (6, SuspendOrdered(), []),
    )


def test_a_stop_of_what_is_suspended_continues_it_once_the_signal_is_out() -> None:
    """So the signal is the first thing that those hear who were stopped."""
    play(
        (0, started(0, 1), []),
        (1, WorkerGone(1), []),
        (1, seen((70, 1)), []),
        (2, SuspendOrdered(), [SuspendTree()]),
        (
            3,
            StopOrdered(0, INT, 30.0),
            [SignalWorkers((0,), INT, False), SignalOrphans((70,), INT), ContinueTree()],
        ),
        (4, ContinueOrdered(), []),
    )


def test_helpers_that_are_suspended_when_the_last_worker_dies_are_continued_to_stop() -> None:
    play(
        (0, started(0), []),
        (1, SuspendOrdered(), [SuspendTree()]),
        (2, WorkerGone(0), []),
        (2, seen((70, 0)), [SignalOrphans((70,), TERM), ContinueTree()]),
        (3, seen(), [ReportGone(0, stuck=False)]),
    )


def test_the_next_round_is_not_suspended_because_the_last_was() -> None:
    for end in (KillOrdered(0), WorkerGone(0)):
        machine = play((0, started(0), []), (1, SuspendOrdered(), [SuspendTree()]))
        machine.handle(end, 2)
        machine.handle(WorkerGone(0), 2)
        assert ReportGone(0, stuck=False) in machine.handle(seen(), 2)
        machine.handle(started(0, round=1), 3)

        assert list(machine.handle(ContinueOrdered(), 4)) == []
        assert list(machine.handle(SuspendOrdered(), 5)) == [SuspendTree()]


def test_what_is_suspended_is_killed_as_it_is() -> None:
    """SIGKILL wakes whom it ends: also when the agent of a suspended job is killed."""
    for order in (KillOrdered(0), AgentGone()):
        play(
            (0, started(0), []),
            (1, SuspendOrdered(), [SuspendTree()]),
            (2, order, [KillTree(whole_tree=True)]),
        )


def test_a_group_over_a_group_is_a_mistake() -> None:
    machine = play((0, started(0), []))

    with pytest.raises(AssertionError, match="round 1 started over round 0"):
        machine.handle(started(0, round=1), 1)


# Random histories


class World:
    """Kernel and fork server around one machine: processes that obey, or do not, and a clock.

    After each event `check` holds what the machine did against the invariants.
    """

    def __init__(self, machine: StopMachine, choose: random.Random) -> None:
        self.machine = machine
        self.choose = choose
        self.now = 100.0
        self.round = -1
        self.workers: set[int] = set()
        self.orphans: dict[int, int | None] = {}
        self.next_pid = 1000
        self.left = False
        self.agent_there = True
        # Of the group: what must hold is judged by these.
        self.open = False  #: started, and not reported gone
        self.end_at: float | None = None  #: by which KILL must be out
        self.killed_at: float | None = None
        self.told: set[int] = set()
        self.told_workers = 0
        self.told_helpers = 0
        self.suspended = False

    # What happens

    def step(self) -> None:
        if self.left:
            return
        self.choose.choice(
            [
                self.start,
                self.time_passes,
                self.time_passes,
                self.worker_dies,
                self.worker_dies,
                self.orphan_comes,
                self.orphan_goes,
                self.orphan_goes,
                self.stop,
                self.kill,
                self.suspend,
                self.continue_,
                self.old_order,
                self.tick,
                self.agent_dies,
            ]
        )()

    def start(self) -> None:
        if self.open or not self.agent_there:
            return
        self.round += 1
        self.workers = set(range(self.choose.randint(1, 4)))
        self.orphans = {}
        self.open = True
        self.end_at = self.killed_at = None
        self.told = set()
        self.told_workers = self.told_helpers = 0
        self.suspended = False
        self.feed(started(*sorted(self.workers), round=self.round))

    def time_passes(self) -> None:
        """To the machine's own deadline, as poll would; or less."""
        deadline = self.machine.deadline
        if deadline is None:
            self.now += self.choose.uniform(0, 20)
        elif self.choose.random() < 0.6:
            assert deadline >= self.now, "a deadline in the past: the loop would spin"
            self.now = deadline
        else:
            self.now = self.choose.uniform(self.now, deadline)
        self.tick()

    def tick(self) -> None:
        before = self.machine.deadline
        effects = self.feed(Ticked())
        if before is not None and before <= self.now:
            assert effects, f"the instant {before} came and nothing was done at {self.now}"
        after = self.machine.deadline
        assert after is None or after > self.now, "a deadline that has passed is still set"

    def worker_dies(self) -> None:
        if not self.open or not self.workers:
            return
        rank = self.choose.choice(sorted(self.workers))
        self.workers.discard(rank)
        if self.choose.random() < 0.4:
            self.new_orphan(self.choose.choice([rank, None]))
        self.feed(WorkerGone(rank))
        self.see()

    def orphan_comes(self) -> None:
        """A living worker's child loses its parent, or a killed process turns out to have one."""
        if not self.open or not (self.workers or self.orphans):
            return
        self.new_orphan(self.choose.choice([None, *sorted(self.workers)]))
        self.see()

    def new_orphan(self, owner: int | None) -> None:
        self.orphans[self.next_pid] = owner
        self.next_pid += 1

    def orphan_goes(self) -> None:
        if self.open and self.orphans:
            del self.orphans[self.choose.choice(sorted(self.orphans))]
            self.see()

    def see(self) -> None:
        self.feed(ChildrenSeen(tuple(Orphan(pid, owner) for pid, owner in self.orphans.items())))

    def stop(self) -> None:
        if not self.agent_there:
            return
        timeout_s = self.choose.choice([0.0, 1.0, 5.0, 30.0])
        if self.open:
            end_at = self.now + timeout_s
            self.end_at = end_at if self.end_at is None else min(self.end_at, end_at)
        self.feed(StopOrdered(self.round, self.choose.choice([INT, TERM]), timeout_s))

    def kill(self) -> None:
        if self.agent_there:
            if self.open:
                self.end_at = self.now
            self.feed(KillOrdered(self.round))

    def suspend(self) -> None:
        if self.agent_there:
            wanted = self.open and self.end_at is None
            self.feed(SuspendOrdered())
            assert self.suspended == wanted, f"suspended: {self.suspended}"

    def continue_(self) -> None:
        if self.agent_there:
            self.feed(ContinueOrdered())
            assert not self.suspended, "continued, and still suspended"

    def old_order(self) -> None:
        order = self.choose.choice(
            [StopOrdered(self.round - 1, TERM, 0.0), KillOrdered(self.round - 1)]
        )
        assert not self.feed(order), "an order of another round has an effect"

    def agent_dies(self) -> None:
        if self.agent_there and self.choose.random() < 0.1:
            self.agent_there = False
            if self.open:
                self.end_at = self.now
            self.feed(AgentGone())

    # What must hold

    def feed(self, event: Event) -> Sequence[Effect]:
        was_running = self.machine.phase is Phase.RUNNING
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            assert not self.left, f"{effect} after Leave"
            self.check(effect)
        if was_running and self.machine.phase is Phase.STOPPING and self.end_at is None:
            assert not self.workers, "stages began by themselves with a worker alive"
            self.end_at = self.now + LEFTOVER_S
        self.check_state()
        return effects

    def check(self, effect: Effect) -> None:
        match effect:
            case SignalWorkers(local_ranks):
                self.told_workers += 1
                assert self.told_workers == 1, "workers told twice"
                assert set(local_ranks) == self.workers
            case SuspendTree():
                assert not self.suspended, "suspended twice"
                assert self.machine.phase is Phase.RUNNING
                self.suspended = True
            case ContinueTree():
                assert self.suspended, "continued, and nobody had suspended it"
                assert self.machine.phase is not Phase.STOPPING or self.told_workers or self.told
                self.suspended = False
            case SignalOrphans(pids):
                assert pids
                assert not self.told & set(pids), "an orphan told twice"
                self.told |= set(pids)
                for pid in pids:
                    owner = self.orphans[pid]
                    alone = owner is not None and owner not in self.workers
                    assert alone or not self.workers, "a living worker's helper told"
            case SignalHelpers():
                self.told_helpers += 1
                assert self.told_helpers == 1, "helpers told twice"
            case KillTree(whole_tree):
                assert self.open
                self.suspended = False
                assert whole_tree == (self.killed_at is None)
                if self.killed_at is None:
                    self.killed_at = self.now
                    assert self.end_at is not None, "killed and nobody asked for it"
                    assert self.now >= self.end_at, "killed before the end"
            case ReportKilling(round_, local_ranks, helpers):
                assert round_ == self.round
                assert set(local_ranks) == self.workers
                assert helpers == len(self.orphans)
            case ReportGone(round_, stuck):
                assert self.open, "gone twice, or never started"
                assert round_ == self.round
                self.open = self.suspended = False
                left = bool(self.workers or self.orphans)
                assert stuck == left, f"stuck {stuck}, but {self.workers} and {self.orphans}"
                if stuck:
                    assert self.killed_at is not None
                    assert self.now >= self.killed_at + STUCK_AFTER_S
            case Leave():
                assert not self.open
                assert not self.agent_there
                self.left = True

    def check_state(self) -> None:
        machine = self.machine
        assert self.agent_there or self.open or self.left, "nobody to serve, and still there"
        assert machine.alive == self.workers or not self.open
        assert (machine.phase is Phase.NONE) == (not self.open)
        assert not self.suspended or machine.phase is Phase.RUNNING, "time runs out for the stopped"
        if self.end_at is not None and self.open and self.killed_at is None:
            assert machine.deadline is not None, "a stop order, and KILL will never come"
            assert machine.deadline <= self.end_at
        if self.killed_at is not None and self.open:
            assert machine.deadline == self.killed_at + STUCK_AFTER_S
        if machine.phase in (Phase.NONE, Phase.RUNNING):
            assert machine.deadline is None

    def run_out(self) -> None:
        """With nothing but time, a group that was told to stop is gone."""
        for _ in range(10):
            if not self.open or self.end_at is None:
                return
            assert self.machine.deadline is not None
            self.now = max(self.now, self.machine.deadline)
            self.tick()
        raise AssertionError("a stopped group is never reported gone")


def walk(make: Callable[[], StopMachine], seed: int, steps: int = 60) -> None:
    world = World(make(), random.Random(seed))
    for _ in range(steps):
        world.step()
    world.run_out()


def walk_many(make: Callable[[], StopMachine], seeds: range) -> None:
    for seed in seeds:
        walk(make, seed)


@given(st.integers(0, 2**63))
@settings(max_examples=400, deadline=None)
def test_invariants_hold_in_any_history(seed: int) -> None:
    walk(StopMachine, seed)


@pytest.mark.long
def test_invariants_hold_in_very_many_histories() -> None:
    start = random.randrange(2**32)
    print(f"seeds from {start}")
    walk_many(StopMachine, range(start, start + 20_000))


# Seeded mistakes: the checks above must find each of them


class ForgetsTheKill(StopMachine):
    def _set_stages(self, timeout_s: float, now: float) -> None:
        super()._set_stages(timeout_s, now)
        self._kill_at = None


class KeepsAnInstant(StopMachine):
    def _ticked(self, now: float) -> Sequence[Effect]:
        helpers_at = self._helpers_at
        effects = super()._ticked(now)
        self._helpers_at = helpers_at
        return effects


class TellsOrphansAgain(StopMachine):
    def _tell_orphans(self) -> Sequence[Effect]:
        self._told.clear()
        return super()._tell_orphans()


class TellsHelpersOfTheLiving(StopMachine):
    def _tell_orphans(self) -> Sequence[Effect]:
        alive, self.alive = self.alive, set()
        try:
            return super()._tell_orphans()
        finally:
            self.alive = alive


class GoneTooEarly(StopMachine):
    def _children_seen(self, now: float) -> Sequence[Effect]:
        if self.phase is not Phase.NONE and not self.alive:
            return self._gone(stuck=False)
        return super()._children_seen(now)


class NeverGivesUp(StopMachine):
    def _kill(self, now: float) -> Sequence[Effect]:
        effects = super()._kill(now)
        self._stuck_at = None
        return effects


class KillsAgain(StopMachine):
    def _kill(self, now: float) -> Sequence[Effect]:
        if self.phase is Phase.KILLING:
            return (KillTree(whole_tree=True),)
        return super()._kill(now)


class ObeysOldOrders(StopMachine):
    def _concerns(self, round_: int) -> bool:
        return self.phase is not Phase.NONE


class StaysWithoutAgent(StopMachine):
    def _gone(self, *, stuck: bool) -> Sequence[Effect]:
        return super()._gone(stuck=stuck)[:1]


class MovesTheEndBack(StopMachine):
    def _stop(self, signum: int, timeout_s: float, now: float) -> Sequence[Effect]:
        if self.phase is Phase.STOPPING:
            self._set_stages(timeout_s, now)
        return super()._stop(signum, timeout_s, now)


class ReportsTwice(StopMachine):
    def _gone(self, *, stuck: bool) -> Sequence[Effect]:
        return [*super()._gone(stuck=stuck), ReportGone(self.round, stuck)]


class SuspendsAStop(StopMachine):
    def _suspend(self) -> Sequence[Effect]:
        phase = self.phase
        try:
            self.phase = Phase.RUNNING if phase is Phase.STOPPING else phase
            return super()._suspend()
        finally:
            self.phase = phase


class StopsTheSuspended(StopMachine):
    def _stop(self, signum: int, timeout_s: float, now: float) -> Sequence[Effect]:
        effects = super()._stop(signum, timeout_s, now)
        return [effect for effect in effects if effect != ContinueTree()]


class ContinuesTheNextRound(StopMachine):
    def _gone(self, *, stuck: bool) -> Sequence[Effect]:
        suspended = self._suspended
        effects = super()._gone(stuck=stuck)
        self._suspended = suspended
        return effects


@pytest.mark.parametrize(
    "mistaken",
    [
        ForgetsTheKill,
        KeepsAnInstant,
        TellsOrphansAgain,
        TellsHelpersOfTheLiving,
        GoneTooEarly,
        NeverGivesUp,
        KillsAgain,
        ObeysOldOrders,
        StaysWithoutAgent,
        MovesTheEndBack,
        ReportsTwice,
        SuspendsAStop,
        StopsTheSuspended,
        ContinuesTheNextRound,
    ],
)
def test_the_checks_find_a_seeded_mistake(mistaken: type[StopMachine]) -> None:
    with pytest.raises(AssertionError):
        walk_many(mistaken, range(500))
