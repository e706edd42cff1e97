"""Coordinator and member, alone as transcripts, and wired together over random histories.

`Job` is the smallest thing that runs both: one queue, as in the agent, and a fake fork server that
knows which workers live. It checks the promises of the two theories of operation at every step;
seeded mistakes at the end show that it would notice.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.job import Command, CommandKind, JobSpec, StoreAddress
from phalanx.outcome import ExitStatus, Failure, Outcome, OutcomeKind
from phalanx.record import replace
from phalanx.rendezvous.coordinator import Coordinator, Limits, Phase, complete
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
from phalanx.rendezvous.member import (
    GRACE_AFTER_FAILURE_S,
    GRACE_ON_SIGNAL_S,
    ClearTree,
    ForkServerLost,
    ForkServerReady,
    GroupCleared,
    GroupState,
    KillGroup,
    Leave,
    Member,
    MemberEffect,
    MemberEvent,
    ServiceEnded,
    SignalArrived,
    StartGroup,
    StopGroup,
    SuspendAsked,
    SuspendNode,
    Tell,
    TreeCleared,
    WorkerEnded,
)
from phalanx.rendezvous.ranks import NodeRanks, NodeSize, number

INT, TERM, KILL = 2, 15, 9
OFFER = StoreOffer("127.0.0.1", 4000)
OTHER_OFFER = StoreOffer("127.0.0.1", 4001)
OK = ExitStatus(0)
THREE = ExitStatus(3)
STORE = "the store of the workers"


def job_spec(workers: int = 2, max_restarts: int = 0, timeout_s: float | None = None) -> JobSpec:
    return JobSpec(
        command=Command(CommandKind.SCRIPT, "train.py", python="python"),
        run_id="job",
        local_world_size=workers,
        store=StoreAddress("127.0.0.1", None),
        max_restarts=max_restarts,
        shutdown_timeout_s=timeout_s,
    )


def joined(node: str = "a", workers: int = 2, offer: StoreOffer = OFFER) -> NodeJoined:
    return NodeJoined(node, f"host-{node}", workers, "default", offer)


def assignment(round: int = 0, restart_count: int = 0, port: int = 4000) -> Assignment:
    """Of the only node, with two workers."""
    return Assignment(round, restart_count, 0, 1, 0, 2, 0, 2, "127.0.0.1", port)


def failure(local_rank: int | None = 0, round: int = 0, status: ExitStatus = THREE) -> Failure:
    return Failure("a", "host-a", round, local_rank, local_rank, 100, status)


def failed(
    local_rank: int = 0, round: int = 0, status: ExitStatus = THREE, age_s: float = 0.0
) -> WorkerFailed:
    return WorkerFailed("a", round, failure(local_rank, round, status), age_s)


def gone(round: int = 0, offer: StoreOffer = OTHER_OFFER, node: str = "a") -> GroupGone:
    return GroupGone(node, round, offer)


def stop(round: int = 0, reason: StopReason = StopReason.FAILURE, signum: int = TERM) -> StopRound:
    return StopRound("a", round, reason, signum)


def closed(kind: OutcomeKind, *failures: Failure, signum: int | None = None) -> CloseJob:
    return CloseJob("a", Outcome(kind, failures, signum=signum))


def ask(
    limits: Limits, *lines: tuple[float, CoordinatorEvent, list[CoordinatorEffect]]
) -> Coordinator:
    """Feed (now, event, the effects that must follow) to a fresh coordinator."""
    coordinator = Coordinator(limits)
    for now, event, wanted in lines:
        assert list(coordinator.handle(event, now)) == wanted, f"at {now}: {event}"
    return coordinator


ONCE = Limits(max_restarts=0)
TWICE = Limits(max_restarts=1)
START = StartRound("a", assignment())


# The coordinator


def test_the_only_node_starts_at_once_and_the_job_ends_when_its_group_is_gone() -> None:
    coordinator = ask(
        ONCE,
        (0, joined(), [START]),
        (5, GroupSucceeded("a", 0), []),
        (6, gone(), [closed(OutcomeKind.SUCCEEDED)]),
    )

    assert coordinator.phase is Phase.CLOSED


def test_a_failure_stops_the_round_and_with_its_budget_spent_ends_the_job() -> None:
    ask(
        ONCE,
        (0, joined(), [START]),
        (1, failed(1), [stop()]),
        (2, gone(), [closed(OutcomeKind.FAILED, failure(1))]),
    )


def test_a_failure_within_budget_costs_one_restart_on_the_store_just_offered() -> None:
    ask(
        TWICE,
        (0, joined(), [START]),
        (1, failed(1), [stop()]),
        (
            2,
            gone(),
            [AnnounceRestart(failure(1), 1, 1), StartRound("a", assignment(1, 1, port=4001))],
        ),
        (3, failed(0, round=1), [stop(round=1)]),
        (4, gone(round=1), [closed(OutcomeKind.FAILED, failure(0, round=1))]),
    )


def test_several_failures_of_one_round_cost_one_restart_and_the_earliest_is_the_cause() -> None:
    """Failures are placed at arrival minus age, in whatever order they come."""
    killed = ExitStatus(signal=KILL)
    ask(
        Limits(max_restarts=3),
        (0, joined(), [START]),
        (10, failed(0, age_s=0.1), [stop()]),
        (10.1, failed(1, age_s=5.0, status=killed), []),
        (
            11,
            gone(),
            [
                AnnounceRestart(failure(1, status=killed), 1, 3),
                StartRound("a", assignment(1, 1, port=4001)),
            ],
        ),
    )


def test_the_report_holds_all_failures_of_the_last_round_the_first_one_first() -> None:
    ask(
        ONCE,
        (0, joined(), [START]),
        (10, failed(0, age_s=0.0), [stop()]),
        (11, failed(1, age_s=3.0), []),
        (12, gone(), [closed(OutcomeKind.FAILED, failure(1), failure(0))]),
    )


def test_a_failure_told_twice_counts_once() -> None:
    ask(
        ONCE,
        (0, joined(), [START]),
        (1, failed(1), [stop()]),
        (2, failed(1), []),
        (3, gone(), [closed(OutcomeKind.FAILED, failure(1))]),
        (4, gone(), []),
    )


def test_a_stop_request_stops_the_round_by_its_signal_and_ends_the_job_without_a_charge() -> None:
    coordinator = ask(
        Limits(max_restarts=3),
        (0, joined(), [START]),
        (1, StopRequested("a", INT), [stop(reason=StopReason.SIGNAL, signum=INT)]),
        (2, StopRequested("a", TERM), []),
        (3, failed(0), []),
        (4, gone(), [closed(OutcomeKind.STOPPED, signum=INT)]),
    )

    assert coordinator.restart_count == 0


def test_a_stop_request_while_a_failure_within_budget_is_stopped_ends_the_job_as_stopped() -> None:
    ask(
        TWICE,
        (0, joined(), [START]),
        (1, failed(0), [stop()]),
        (2, StopRequested("a", TERM), []),
        (3, gone(), [closed(OutcomeKind.STOPPED, signum=TERM)]),
    )


def test_a_stop_request_after_the_last_failure_leaves_the_job_failed() -> None:
    ask(
        ONCE,
        (0, joined(), [START]),
        (1, failed(0), [stop()]),
        (2, StopRequested("a", TERM), []),
        (3, gone(), [closed(OutcomeKind.FAILED, failure(0))]),
    )


def test_a_failure_that_happened_before_the_stop_request_but_came_late_is_one() -> None:
    ask(
        ONCE,
        (0, joined(), [START]),
        (5, StopRequested("a", TERM), [stop(reason=StopReason.SIGNAL)]),
        (5.1, failed(0, age_s=1.0), []),
        (6, gone(), [closed(OutcomeKind.FAILED, failure(0))]),
    )


def test_a_stop_request_in_the_next_round_is_for_that_round() -> None:
    ask(
        TWICE,
        (0, joined(), [START]),
        (1, failed(0), [stop()]),
        (
            2,
            gone(),
            [AnnounceRestart(failure(0), 1, 1), StartRound("a", assignment(1, 1, port=4001))],
        ),
        (2, StopRequested("a", TERM), [stop(round=1, reason=StopReason.SIGNAL)]),
        (3, gone(round=1), [closed(OutcomeKind.STOPPED, signum=TERM)]),
    )


def test_a_stop_request_before_the_node_has_joined_ends_the_job() -> None:
    """Nothing is there to stop; whoever asked, and whoever comes later, is told."""
    ask(
        ONCE,
        (0, StopRequested("a", TERM), [closed(OutcomeKind.STOPPED, signum=TERM)]),
        (1, joined(), [closed(OutcomeKind.STOPPED, signum=TERM)]),
        (1, StopRequested("a", TERM), []),
    )


def test_the_loss_of_the_store_ends_the_round_like_a_failure() -> None:
    lost = failure(None, status=ExitStatus(signal=KILL))
    ask(
        ONCE,
        (0, joined(), [START]),
        (1, WorkerFailed("a", 0, lost, 0.0), [stop()]),
        (2, gone(), [closed(OutcomeKind.FAILED, lost)]),
    )


def test_the_loss_of_the_store_is_nothing_once_all_workers_have_succeeded() -> None:
    lost = failure(None, status=ExitStatus(signal=KILL))
    ask(
        ONCE,
        (0, joined(), [START]),
        (1, GroupSucceeded("a", 0), []),
        (2, WorkerFailed("a", 0, lost, 0.0), []),
        (3, gone(), [closed(OutcomeKind.SUCCEEDED)]),
    )


def test_what_cannot_be_killed_makes_the_node_unfit_and_is_not_run_beside() -> None:
    reason = "SIGKILL did not end within 10 s: 77 (nfs_wait), 78 (running)"
    outcome = Outcome(OutcomeKind.UNFIT, (failure(0),), reason=reason)
    ask(
        Limits(max_restarts=3),
        (0, joined(), [START]),
        (1, failed(0), [stop()]),
        (20, GroupGone("a", 0, OFFER, ((77, "nfs_wait"), (78, ""))), [CloseJob("a", outcome)]),
    )


@pytest.mark.parametrize("member", [True, False])
def test_a_node_that_has_failed_ends_the_job_with_its_reason(member: bool) -> None:
    """Before it could join, too."""
    coordinator = Coordinator(TWICE)
    if member:
        coordinator.handle(joined(), 0)

    effects = coordinator.handle(NodeFailed("a", "the fork server is gone"), 1)

    assert effects == [
        CloseJob("a", Outcome(OutcomeKind.NODE_FAILED, reason="the fork server is gone"))
    ]


def test_reports_of_older_rounds_change_nothing() -> None:
    ask(
        Limits(max_restarts=2),
        (0, joined(), [START]),
        (1, failed(0), [stop()]),
        (
            2,
            gone(),
            [AnnounceRestart(failure(0), 1, 2), StartRound("a", assignment(1, 1, port=4001))],
        ),
        (3, failed(1), []),
        (3, GroupSucceeded("a", 0), []),
        (3, gone(), []),
        (4, gone(round=1), [closed(OutcomeKind.SUCCEEDED)]),
    )


def test_every_message_may_come_twice() -> None:
    ask(
        TWICE,
        (0, joined(), [START]),
        (0, joined(), []),
        (1, failed(0), [stop()]),
        (1, failed(0), []),
        (
            2,
            gone(),
            [AnnounceRestart(failure(0), 1, 1), StartRound("a", assignment(1, 1, port=4001))],
        ),
        (2, gone(), []),
        (3, GroupSucceeded("a", 1), []),
        (3, GroupSucceeded("a", 1), []),
        (4, gone(round=1), [closed(OutcomeKind.SUCCEEDED)]),
        (4, gone(round=1), []),
    )


def test_after_the_end_nothing_is_started() -> None:
    coordinator = ask(TWICE, (0, joined(), [START]), (1, gone(), [closed(OutcomeKind.SUCCEEDED)]))

    late: list[CoordinatorEvent] = [failed(0), gone(), StopRequested("a", TERM)]
    assert [list(coordinator.handle(event, 2)) for event in late] == [[], [], []]


def test_a_round_of_two_nodes_starts_stops_and_ends_on_both() -> None:
    """Nobody is in the next round before everybody is out of the last."""
    coordinator = Coordinator(Limits(2, 2, 1))
    assert coordinator.handle(joined("a", 2), 0) == ()
    starts = coordinator.handle(joined("b", 3), 0)
    assert [(s.node, s.assignment.rank_base) for s in starts if isinstance(s, StartRound)] == [
        ("a", 0),
        ("b", 2),
    ]

    stops = coordinator.handle(failed(0), 1)
    assert stops == [stop(), StopRound("b", 0, StopReason.FAILURE, TERM)]
    assert coordinator.handle(gone(), 2) == ()
    assert coordinator.handle(gone(), 2) == ()
    again = coordinator.handle(gone(node="b"), 3)

    assert [type(effect) for effect in again] == [AnnounceRestart, StartRound, StartRound]


@pytest.mark.parametrize(
    ("members", "enough", "reason"),
    [
        (0, False, "waiting for nodes: 0 of 2 are there"),
        (1, False, "waiting for nodes: 1 of 2 are there"),
        (2, True, "all 2 nodes are there"),
    ],
)
def test_whether_a_round_can_start_is_answered_with_the_numbers(
    members: int, enough: bool, reason: str
) -> None:
    assert complete(members, Limits(2, 2, 0)) == (enough, reason)


def test_ranks_are_contiguous_on_a_node_and_role_ranks_within_the_role() -> None:
    assert number([NodeSize(2, "x"), NodeSize(1, "y"), NodeSize(3, "x")]) == [
        NodeRanks(0, 0, 6, 0, 5),
        NodeRanks(1, 2, 6, 0, 1),
        NodeRanks(2, 3, 6, 2, 5),
    ]


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("xyz")), min_size=1, max_size=20))
def test_ranks_are_exactly_0_to_world_size_each_once(nodes: list[tuple[int, str]]) -> None:
    sizes = [NodeSize(count, role) for count, role in nodes]
    result = number(sizes)

    pairs = list(zip(result, sizes, strict=True))
    ranks = [r.rank_base + i for r, s in pairs for i in range(s.local_world_size)]
    assert ranks == list(range(sum(count for count, _role in nodes)))
    for role in {role for _count, role in nodes}:
        role_ranks = [
            r.role_rank_base + i
            for r, (count, of) in zip(result, nodes, strict=True)
            if of == role
            for i in range(count)
        ]
        assert role_ranks == list(range(len(role_ranks)))


# The member


def tell(event: CoordinatorEvent) -> Tell:
    return Tell(event)


def follow(
    *lines: tuple[float, MemberEvent, list[MemberEffect]], spec: JobSpec | None = None
) -> Member:
    """Feed (now, event, the effects that must follow) to a fresh member."""
    member = Member("a", "host-a", spec or job_spec())
    for now, event, wanted in lines:
        assert list(member.handle(event, now)) == wanted, f"at {now}: {event}"
    return member


def ended(local_rank: int, status: ExitStatus = OK, at: float = 0.0, round: int = 0) -> WorkerEnded:
    return WorkerEnded(round, local_rank, 100, status, at)


STARTED: tuple[float, MemberEvent, list[MemberEffect]] = (0, START, [StartGroup(assignment())])


def test_member_joins_when_its_fork_server_is_ready() -> None:
    follow((0, ForkServerReady(OFFER), [tell(joined())]))


def test_member_tells_success_when_the_last_worker_exits_0_and_then_the_end() -> None:
    member = follow(
        STARTED,
        (1, ended(1), []),
        (2, ended(0), [tell(GroupSucceeded("a", 0))]),
        (3, GroupCleared(0, OTHER_OFFER), [tell(gone())]),
    )

    assert member.state is GroupState.NONE


def test_member_tells_a_failure_with_its_age_and_its_rank_in_the_world() -> None:
    placed = Assignment(0, 0, 3, 4, 6, 8, 6, 8, "host", 1)
    wanted = Failure("a", "host-a", 0, 1, 7, 100, THREE)
    follow(
        (0, StartRound("a", placed), [StartGroup(placed)]),
        (5, ended(1, THREE, at=3.5), [tell(WorkerFailed("a", 0, wanted, 1.5))]),
    )


@pytest.mark.parametrize(
    ("reason", "given_s", "grace_s"),
    [
        (StopReason.FAILURE, None, GRACE_AFTER_FAILURE_S),
        (StopReason.SIGNAL, None, GRACE_ON_SIGNAL_S),
        (StopReason.FAILURE, 7.0, 7.0),
        (StopReason.SIGNAL, 0.0, 0.0),
    ],
)
def test_member_stops_with_the_grace_of_the_reason_or_the_users(
    reason: StopReason, given_s: float | None, grace_s: float
) -> None:
    follow(
        STARTED,
        (1, stop(reason=reason, signum=INT), [StopGroup(0, INT, grace_s)]),
        spec=job_spec(timeout_s=given_s),
    )


def test_member_tells_a_stop_request_for_each_signal_and_the_second_int_kills() -> None:
    follow(
        STARTED,
        (1, SignalArrived(INT, INT), [tell(StopRequested("a", INT))]),
        (2, SignalArrived(TERM, TERM), [tell(StopRequested("a", TERM))]),
        (3, SignalArrived(INT, INT), [tell(StopRequested("a", INT)), KillGroup(0)]),
    )


def test_workers_that_ignore_a_signal_are_passed_another() -> None:
    """A second INT kills all the same."""
    follow(
        STARTED,
        (1, SignalArrived(INT, TERM), [tell(StopRequested("a", TERM))]),
        (2, SignalArrived(INT, TERM), [tell(StopRequested("a", TERM)), KillGroup(0)]),
    )


def test_member_has_nothing_to_kill_without_a_group() -> None:
    follow(
        (0, SignalArrived(INT, INT), [tell(StopRequested("a", INT))]),
        (0, SignalArrived(INT, INT), [tell(StopRequested("a", INT))]),
    )


def test_member_suspends_its_node_whatever_its_group_does() -> None:
    """What of that may stand still is decided by the stop machine; nobody is told."""
    member = follow((0, SuspendAsked(), [SuspendNode()]))
    member.handle(StartRound("a", assignment(0)), 1)
    assert list(member.handle(SuspendAsked(), 2)) == [SuspendNode()]
    member.handle(StopRound("a", 0, StopReason.SIGNAL, TERM), 3)
    assert list(member.handle(SuspendAsked(), 4)) == [SuspendNode()]


def test_member_is_needed_while_it_clears_what_a_lost_fork_server_leaves() -> None:
    follow(
        (0, ForkServerLost("it is gone"), [ClearTree()]),
        (1, SuspendAsked(), []),
    )


def test_member_tells_the_loss_of_the_store_as_no_workers_failure() -> None:
    status = ExitStatus(signal=KILL)
    wanted = Failure("a", "host-a", 0, None, None, 0, status, "the store of the workers")
    follow(STARTED, (1, ServiceEnded(0, STORE, status), [tell(WorkerFailed("a", 0, wanted, 0.0))]))


def test_member_ignores_what_is_said_of_another_round() -> None:
    follow(
        (0, ended(0, THREE), []),
        (0, GroupCleared(0, OFFER), []),
        STARTED,
        (1, stop(round=1), []),
        (1, ended(0, THREE, round=1), []),
        (1, ServiceEnded(1, STORE, THREE), []),
        (1, GroupCleared(1, OFFER), []),
        (2, GroupCleared(0, OTHER_OFFER), [tell(gone())]),
        (3, GroupCleared(0, OTHER_OFFER), []),
        (3, ended(0, THREE), []),
        (3, stop(), []),
    )


def test_member_starts_each_round_once_however_often_it_is_told() -> None:
    """The order may be repeated while the group runs, and may be late when it is gone."""
    second = assignment(1, 1, port=4001)
    follow(
        STARTED,
        (1, START, []),
        (2, GroupCleared(0, OTHER_OFFER), [tell(gone())]),
        (3, START, []),
        (4, StartRound("a", second), [StartGroup(second)]),
        (5, START, []),
    )


def test_member_refuses_a_new_round_over_workers_that_live() -> None:
    member = follow(STARTED)

    with pytest.raises(AssertionError):
        member.handle(StartRound("a", assignment(1)), 1)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="not ready"),
        pytest.param([ForkServerReady(OFFER)], id="no group"),
        pytest.param([START], id="running"),
        pytest.param([START, ended(0), ended(1)], id="succeeded"),
        pytest.param([START, stop()], id="stopping"),
    ],
)
def test_member_clears_what_a_lost_fork_server_leaves_before_it_tells(
    before: list[MemberEvent],
) -> None:
    member = Member("a", "host-a", job_spec())
    for event in before:
        member.handle(event, 0)

    assert list(member.handle(ForkServerLost("it is gone"), 1)) == [ClearTree()]
    assert list(member.handle(ForkServerLost("again"), 1)) == []
    assert list(member.handle(StartRound("a", assignment(7)), 1)) == []
    assert list(member.handle(TreeCleared(), 2)) == [tell(NodeFailed("a", "it is gone"))]


def test_member_names_what_could_not_be_cleared() -> None:
    member = follow((0, ForkServerLost("it is gone"), [ClearTree()]))
    (told,) = member.handle(TreeCleared(((70, "wchan"),)), 2)

    reason = "it is gone; SIGKILL did not end within 10 s: 70 (wchan)"
    assert told == tell(NodeFailed("a", reason))


# Both, with a fake fork server


class Job:
    """One node's member and the coordinator on one queue; what the agent does, without processes.

    The fake fork server knows the workers of the round and what became of each. `check` is called
    with every effect, before it is carried out.
    """

    def __init__(
        self,
        choose: random.Random,
        make_coordinator: Callable[[Limits], Coordinator] = Coordinator,
        make_member: Callable[[str, str, JobSpec], Member] = Member,
    ) -> None:
        self.choose = choose
        #: Half of the jobs do nothing but fail, so that they see many rounds.
        self.calm = choose.random() < 0.5
        #: Nothing fails any more.
        self.well = False
        self.now = 100.0
        self.workers = choose.randint(1, 3)
        self.max_restarts = choose.randint(0, 3)
        spec = job_spec(self.workers, self.max_restarts)
        self.limits = Limits(
            max_restarts=self.max_restarts,
            restart_window_s=choose.choice([None, 2.0, 20.0]),
            restart_on_always=choose.random() < 0.5,
            max_restart_delay_s=choose.choice([0.0, 1.5, 30.0]),
            failure_grace_s=choose.choice([0.0, 0.0, 2.0]),
        )
        self.coordinator = make_coordinator(self.limits)
        self.member = make_member("a", "host-a", spec)
        self.to_coordinator: list[CoordinatorEvent] = []  #: all that was ever told
        self.to_member: list[CoordinatorEffect] = []
        self.queue: deque[tuple[bool, CoordinatorEvent | MemberEvent]] = deque()
        # The fork server
        self.ready = False
        self.there = True
        self.clearing = False
        self.round: int | None = None
        self.alive: set[int] = set()
        self.helpers = 0
        self.stopping = False
        # What has happened, to judge by
        self.rounds: list[Assignment] = []
        self.ends: dict[int, list[tuple[float, ExitStatus]]] = {}
        self.signals: list[float] = []
        self.store_lost: dict[int, float] = {}
        self.started_at: list[float] = []  #: each round
        self.explained: dict[int, dict[int, Explained]] = {}  #: by round and local rank
        self.announced: list[tuple[float, AnnounceRestart]] = []
        self.stuck = False
        self.outcome: Outcome | None = None

    # The queue

    def tell(self, event: MemberEvent) -> None:
        self.queue.append((True, event))
        self.pump()

    def pump(self) -> None:
        while self.queue:
            for_member, event = self.queue.popleft()
            if for_member:
                for effect in self.member.handle(event, self.now):  # type: ignore[arg-type]
                    self.carry_out(effect)
                continue
            for wish in self.coordinator.handle(event, self.now):  # type: ignore[arg-type]
                if isinstance(wish, AnnounceRestart):
                    self.check_announcement(wish)
                elif isinstance(wish, AnnounceGrace):
                    assert wish.seconds == self.limits.failure_grace_s
                    assert not self.stopping
                else:
                    self.to_member.append(wish)
                    self.queue.append((True, wish))

    def carry_out(self, effect: MemberEffect) -> None:
        match effect:
            case StartGroup(assigned):
                self.start(assigned)
            case StopGroup(round_, _, timeout_s):
                assert round_ == self.round
                assert timeout_s > 0
                self.check_grace()
                self.stopping = True
            case KillGroup(round_):
                assert round_ == self.round
                self.stopping = True
            case ClearTree():
                assert not self.there
                self.clearing = True
            case Tell(event):
                self.to_coordinator.append(event)
                self.queue.append((False, event))
            case Leave(outcome):
                self.leave(outcome)

    # What must hold

    def start(self, assigned: Assignment) -> None:
        assert self.outcome is None, "started after the end"
        assert self.coordinator.phase is not Phase.CLOSED, "started after the end"
        assert self.ready
        assert self.there
        assert self.round is None, "a round over a round"
        assert assigned.round == len(self.rounds), "rounds count up, one at a time"
        if self.limits.restart_window_s is None:
            assert assigned.restart_count <= self.max_restarts
        if self.rounds:
            last = self.rounds[-1]
            assert assigned.restart_count == last.restart_count + 1, "one failure, one charge"
            assert self.failures(last.round), "a restart and nothing had failed"
            assert not self.signals, "a restart after a stop request"
            assert not self.hopeless(last.round), "what cannot heal is tried again"
            at, announced = self.announced[-1]
            assert self.now >= at + announced.delay_s, "started before the pause was over"
        self.started_at.append(self.now)
        assert self.in_window(self.now) <= self.max_restarts, "more restarts than in the window"
        ranks = [assigned.rank_base + local for local in range(self.workers)]
        assert ranks == list(range(assigned.world_size))
        self.rounds.append(assigned)
        self.round = assigned.round
        self.alive = set(range(self.workers))
        self.helpers = 0
        self.stopping = False
        self.ends[assigned.round] = []

    def in_window(self, now: float) -> int:
        """Restarts that count against the budget."""
        window_s = self.limits.restart_window_s
        return sum(window_s is None or at > now - window_s for at in self.started_at[1:])

    def hopeless(self, round_: int) -> bool:
        """Is it the first, and did all that failed by themselves fail for good?"""
        explained = self.explained.get(round_)
        if round_ != 0 or self.limits.restart_on_always or not explained:
            return False
        store_first = self.store_lost.get(0, self.now) < min(
            at for at, _ in self.ends[0] if _bad(_)
        )
        return not store_first and not any(each.can_heal for each in explained.values())

    def check_announcement(self, wish: AnnounceRestart) -> None:
        """It counts up, and from the second fast failure in a row the pauses double."""
        assert wish.restart_count == len(self.announced) + 1
        assert wish.in_window <= wish.max_restarts
        self.announced.append((self.now, wish))
        fast = 0
        for round_, start in enumerate(self.started_at):
            first_at = min(at for at, _status in self.failures(round_))
            fast = fast + 1 if first_at - start < 10 else 0
        wanted = 0.0 if fast < 2 else min(2.0 ** (fast - 2), self.limits.max_restart_delay_s)
        assert wish.delay_s == wanted

    def check_grace(self) -> None:
        """Others are stopped when the grace is over, or nobody is left, or somebody wants it."""
        assert self.round is not None
        failures = self.failures(self.round)
        if failures and not self.signals and self.alive:
            waited_s = self.now - min(at for at, _status in failures)
            assert waited_s >= self.limits.failure_grace_s, "stopped too early"

    def failures(self, round_: int) -> list[tuple[float, ExitStatus]]:
        return [end for end in self.ends[round_] if not end[1].succeeded] + [
            (at, ExitStatus(signal=KILL)) for of, at in self.store_lost.items() if of == round_
        ]

    def leave(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            assert outcome == self.outcome
            return
        self.outcome = outcome
        assert self.round is None or self.stuck, f"left with round {self.round} on it"
        last = self.rounds[-1].round if self.rounds else None
        failures = self.failures(last) if last is not None else []
        match outcome.kind:
            case OutcomeKind.SUCCEEDED:
                assert last is not None
                assert len(self.ends[last]) == self.workers
                assert all(status.succeeded for _at, status in self.ends[last])
                assert not self.signals
            case OutcomeKind.FAILED:
                spent = self.in_window(self.now) == self.max_restarts
                assert bool(outcome.cannot_heal) == (self.hopeless(last or 0) and not spent)
                assert spent or outcome.cannot_heal
                assert outcome.failures[0].status == min(failures, key=lambda end: end[0])[1]
                assert len(outcome.failures) == len(failures)
                assert not self.signals or min(f[0] for f in failures) < self.signals[0]
            case OutcomeKind.STOPPED:
                assert self.signals
            case OutcomeKind.UNFIT:
                assert self.stuck
            case OutcomeKind.NODE_FAILED:
                assert not self.there
                assert outcome.reason == "lost"

    # What happens

    def step(self) -> None:
        self.now += self.choose.uniform(0.001, 1.0)
        self.now += 15 * (self.choose.random() < 0.02)
        if self.outcome is not None:
            self.repeat()
            return
        self.choose.choices(
            [
                self.become_ready,
                self.one_ends,
                self.all_end,
                self.clear,
                self.signal,
                self.lose_store,
                self.lose_fork_server,
                self.finish_clearing,
                self.late_report,
                self.repeat,
                self.tick,
            ],
            weights=[4, 8, 2, 8, *([0.05] * 3 if self.calm else [0.5, 0.5, 0.3]), 4, 2, 4, 4],
        )[0]()

    def become_ready(self) -> None:
        if not self.ready and self.there:
            self.ready = True
            self.tell(ForkServerReady(OFFER))

    def one_ends(self) -> None:
        if self.alive and self.there:
            rank = self.choose.choice(sorted(self.alive))
            self.end(rank)

    def all_end(self) -> None:
        for rank in sorted(self.alive):
            if self.there:
                self.end(rank)

    def end(self, rank: int) -> None:
        if self.round is None:
            return
        bad = not self.well and self.choose.random() < (0.7 if self.stopping or self.calm else 0.3)
        status = ExitStatus(signal=TERM) if self.stopping and bad else THREE if bad else OK
        at = self.now - self.choose.uniform(0, 0.0009)
        self.alive.discard(rank)
        self.helpers += self.choose.random() < 0.2
        self.ends[self.round].append((at, status))
        if not status.succeeded and not self.stopping:
            heals = self.choose.random() < 0.6
            self.explained.setdefault(self.round, {})[rank] = Explained(rank, "word", heals)
        self.tell(WorkerEnded(self.round, rank, 100 + rank, status, at))

    def clear(self) -> None:
        """Helpers go, and the group is gone; or the kernel does not let go of a worker."""
        if self.round is None or not self.there:
            return
        if self.helpers:
            self.helpers -= 1
            return
        if self.alive and not (self.stopping and self.choose.random() < 0.03):
            return
        round_, self.round = self.round, None
        unfit = tuple((100 + rank, "wait") for rank in sorted(self.alive))
        self.stuck = bool(unfit)
        self.alive = set()
        explained = tuple(self.explained.get(round_, {}).values())
        self.tell(GroupCleared(round_, OTHER_OFFER, unfit, explained))

    def signal(self) -> None:
        self.signals.append(self.now)
        signum = self.choose.choice([INT, TERM])
        self.tell(SignalArrived(signum, signum))

    def lose_store(self) -> None:
        if self.round is None or not self.there or self.round in self.store_lost:
            return
        if self.alive or self.failures(self.round):  # else nobody needs it any more
            self.store_lost[self.round] = self.now
        self.tell(ServiceEnded(self.round, STORE, ExitStatus(signal=KILL)))

    def lose_fork_server(self) -> None:
        if self.there:
            self.there = False
            self.tell(ForkServerLost("lost"))

    def finish_clearing(self) -> None:
        if self.clearing:
            self.clearing = False
            self.round = None
            self.alive = set()
            self.tell(TreeCleared())

    def late_report(self) -> None:
        """Of a round that is over here: nothing may come of it."""
        over = [a.round for a in self.rounds if a.round != self.round]
        if over:
            round_ = self.choose.choice(over)
            before = len(self.to_coordinator)
            self.tell(ended(0, THREE, at=self.now, round=round_))
            self.tell(GroupCleared(round_, OFFER))
            self.tell(ServiceEnded(round_, STORE, THREE))
            assert len(self.to_coordinator) == before

    def repeat(self) -> None:
        """Something that was said is said again, in one direction or the other."""
        if self.choose.random() < 0.5 and self.to_coordinator:
            event = self.choose.choice(self.to_coordinator)
            if not isinstance(event, StopRequested):  # a signal of now would be one of then
                self.queue.append((False, event))
        elif self.to_member:
            self.queue.append((True, self.choose.choice(self.to_member)))
        self.pump()

    def tick(self) -> None:
        """Early, or late, never so late that nothing comes of it."""
        self.queue.append((False, Ticked()))
        self.pump()
        deadline = self.coordinator.deadline
        assert deadline is None or deadline > self.now, "a deadline was missed"

    def run_out(self) -> None:
        """If whatever is running ends, so does the job, within a bound.

        Where a window is all that bounds the restarts, it has to end well.
        """
        self.well = self.limits.restart_window_s is not None
        for _ in range(100):
            if self.outcome is not None:
                return
            self.now += 1
            self.tick()
            self.become_ready()
            self.finish_clearing()
            self.all_end()
            self.helpers = 0
            if not self.alive:
                self.clear()
        raise AssertionError(f"the job never ends: {self.coordinator.phase}, {self.member.state}")


def _bad(status: ExitStatus) -> bool:
    return not status.succeeded


def walk(job: Job, steps: int = 80) -> Job:
    for _ in range(steps):
        job.step()
    job.run_out()
    return job


@given(st.integers(0, 2**63))
@settings(max_examples=400, deadline=None)
def test_promises_hold_in_any_history(seed: int) -> None:
    walk(Job(random.Random(seed)))


def test_histories_reach_every_outcome_and_every_restart_count() -> None:
    """Else the test before this one would say little."""
    jobs = [walk(Job(random.Random(seed))) for seed in range(1500)]

    assert {job.outcome.kind for job in jobs if job.outcome} == set(OutcomeKind)
    assert {job.coordinator.restart_count for job in jobs} >= {0, 1, 2, 3, 4}
    assert any(job.outcome and job.outcome.cannot_heal for job in jobs)
    assert {wish.delay_s for job in jobs for _at, wish in job.announced} >= {0, 1, 1.5, 2}


@pytest.mark.long
def test_promises_hold_in_very_many_histories() -> None:
    start = random.randrange(2**32)
    print(f"seeds from {start}")
    for seed in range(start, start + 20_000):
        walk(Job(random.Random(seed)))


# Seeded mistakes: the checks above must find each of them


class ChargesNothing(Coordinator):
    def _bill(self, now: float) -> Sequence[CoordinatorEffect]:
        effects = super()._bill(now)
        self._restarts.count = 0
        return effects


class ChargesTwice(Coordinator):
    def _failed(self, failure: Failure, at: float, now: float) -> Sequence[CoordinatorEffect]:
        self._restarts.count += bool(self._failures)
        return super()._failed(failure, at, now)


class StartsTooEarly(Coordinator):
    def _end_round(self, reason: StopReason, signum: int) -> Sequence[CoordinatorEffect]:
        effects = super()._end_round(reason, signum)
        for member in self._members.values():
            member.busy = False
        return [*effects, *self._bill(self._started_at)]


class NamesTheLastFailure(Coordinator):
    def _by_time(self) -> tuple[Failure, ...]:
        return super()._by_time()[::-1]


class ForgetsTheStopRequest(Coordinator):
    def _stop_requested(self, *arguments: object) -> Sequence[CoordinatorEffect]:
        effects = super()._stop_requested(*arguments)  # type: ignore[arg-type]
        self._stop_signum = None
        return effects


class GoesOnAfterTheEnd(Coordinator):
    def _close(self, *arguments: object) -> Sequence[CoordinatorEffect]:
        effects = super()._close(*arguments)  # type: ignore[arg-type]
        self.phase = Phase.FORMING
        return [*effects, *self._form(self._started_at)]


class NeverPauses(Coordinator):
    def _restart(self, now: float) -> Sequence[CoordinatorEffect]:
        effects = super()._restart(now)
        return [*effects, *self._time_is_up(now)] if self.phase is Phase.PAUSING else effects


class GoesOnAfterAStopInAPause(Coordinator):
    def _stop_requested(self, node: str, signum: int, now: float) -> Sequence[CoordinatorEffect]:
        if self.phase is Phase.PAUSING:
            return ()
        return super()._stop_requested(node, signum, now)


class PausesAfterSlowFailuresToo(Coordinator):
    def _start_round(self, now: float) -> Sequence[CoordinatorEffect]:
        effects = super()._start_round(now)
        self._started_at += 1000
        return effects


class CountsEveryRestartForEver(Coordinator):
    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, restart_window_s=None))


class ForgetsRestarts(Coordinator):
    def _start_round(self, now: float) -> Sequence[CoordinatorEffect]:
        effects = super()._start_round(now)
        self._restarts._made_at = []
        return effects


class MissesADeadline(Coordinator):
    def _time_is_up(self, now: float) -> Sequence[CoordinatorEffect]:
        return super()._time_is_up(now) if now < (self.deadline or 0) + 5 else ()


class StopsDuringTheGrace(Coordinator):
    def _failed(self, failure: Failure, at: float, now: float) -> Sequence[CoordinatorEffect]:
        return super()._failed(failure, at - 1, now)


class TriesWhatCannotHeal(Coordinator):
    def _cannot_heal(self) -> str:
        return ""


class GivesUpWhatOneWorkerCannotHeal(Coordinator):
    def _cannot_heal(self) -> str:
        return next((e.cause for e in self._explained.values() if not e.can_heal), "")


class BelievesOldReports(Member):
    @property
    def _round(self) -> int | None:
        return self._assignment.round if self._assignment else None


class StartsAgain(Member):
    def _start(self, assignment: Assignment) -> Sequence[MemberEffect]:
        self._highest_round = -1
        return super()._start(assignment)


class TellsBeforeItIsCleared(Member):
    def handle(self, event: MemberEvent, now: float) -> Sequence[MemberEffect]:
        effects = super().handle(event, now)
        if isinstance(event, ForkServerLost):
            return [*effects, Tell(NodeFailed(self.node, event.reason))]
        return effects


class SwallowsAFailure(Member):
    def _worker_ended(self, event: WorkerEnded, now: float) -> Sequence[MemberEffect]:
        return () if event.status == THREE else super()._worker_ended(event, now)


@pytest.mark.parametrize(
    "mistaken",
    [
        ChargesNothing,
        ChargesTwice,
        StartsTooEarly,
        NamesTheLastFailure,
        ForgetsTheStopRequest,
        GoesOnAfterTheEnd,
        NeverPauses,
        GoesOnAfterAStopInAPause,
        PausesAfterSlowFailuresToo,
        CountsEveryRestartForEver,
        ForgetsRestarts,
        MissesADeadline,
        StopsDuringTheGrace,
        TriesWhatCannotHeal,
        GivesUpWhatOneWorkerCannotHeal,
    ],
)
def test_the_checks_find_a_mistaken_coordinator(mistaken: type[Coordinator]) -> None:
    with pytest.raises(AssertionError):
        [walk(Job(random.Random(seed), make_coordinator=mistaken)) for seed in range(500)]


@pytest.mark.parametrize(
    "mistaken", [BelievesOldReports, StartsAgain, TellsBeforeItIsCleared, SwallowsAFailure]
)
def test_the_checks_find_a_mistaken_member(mistaken: type[Member]) -> None:
    with pytest.raises(AssertionError):
        [walk(Job(random.Random(seed), make_member=mistaken)) for seed in range(500)]
