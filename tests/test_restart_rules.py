"""What is restarted, how soon and how often; and what time the other workers have before that.

First the coordinator alone, on a clock of the test's; then real workers.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import PROGRAMS, SLACK, Run, dumps, eventually, finished, lines_of
from phalanx.outcome import ExitStatus, Failure, Outcome, OutcomeKind
from phalanx.rendezvous.coordinator import Coordinator, Limits, Phase
from phalanx.rendezvous.effects import (
    AnnounceGrace,
    AnnounceRestart,
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
from phalanx.report.words import duration, grace_line, not_restarted_line, restart_line

TERM = 15
OFFER = StoreOffer("127.0.0.1", 4000)
STOPPED = 120
AT_ONCE_S = 3 * SLACK
LOG_SIGNALS = PROGRAMS / "log_signals.py"
FAMILY = PROGRAMS / "family.py"

HOPELESS = Explained(0, "no such module", can_heal=False)
HOPEFUL = Explained(0, "exception", can_heal=True)


class Job:
    """A coordinator with nodes that have two workers each, and a clock."""

    def __init__(self, *nodes: str, **limits: float | bool | None) -> None:
        nodes = nodes or ("a",)
        self.now = 100.0
        self.nodes = nodes
        count = len(nodes)
        self.coordinator = Coordinator(Limits(count, count, **limits))  # type: ignore[arg-type]
        for node in nodes:
            self.tell(NodeJoined(node, f"host-{node}", 2, "default", OFFER))
        assert self.coordinator.phase is Phase.RUNNING

    def tell(self, event: CoordinatorEvent, after_s: float = 0.0) -> list[CoordinatorEffect]:
        self.now += after_s
        return list(self.coordinator.handle(event, self.now))

    def failed(
        self, local_rank: int | None = 0, node: str = "a", age_s: float = 0.0
    ) -> WorkerFailed:
        round_ = self.coordinator.round
        failure = Failure(node, f"host-{node}", round_, local_rank, local_rank, 7, ExitStatus(3))
        return WorkerFailed(node, round_, failure, age_s)

    def gone(self, *explained: Explained, node: str = "a") -> GroupGone:
        return GroupGone(node, self.coordinator.round, OFFER, explained=explained)

    def fails(self, after_s: float = 1.0, *explained: Explained) -> list[CoordinatorEffect]:
        """The round fails and is gone at once; what follows from that."""
        self.tell(self.failed(), after_s)
        return self.tell(self.gone(*explained))

    def wait(self) -> list[CoordinatorEffect]:
        """Until time alone changes something."""
        assert self.coordinator.deadline is not None
        self.now = self.coordinator.deadline
        return self.tell(Ticked())


def announced(effects: Sequence[CoordinatorEffect]) -> AnnounceRestart:
    (found,) = (effect for effect in effects if isinstance(effect, AnnounceRestart))
    return found


def started(effects: Sequence[CoordinatorEffect]) -> bool:
    return any(isinstance(effect, StartRound) for effect in effects)


def outcome(effects: Sequence[CoordinatorEffect]) -> Outcome:
    (closing,) = {effect.outcome for effect in effects if isinstance(effect, CloseJob)}
    return closing


def pauses(job: Job, *ran_s: float) -> list[float]:
    """The pauses before the restarts of rounds that ran so long."""
    found = []
    for seconds in ran_s:
        effects = job.fails(seconds)
        found.append(announced(effects).delay_s)
        assert started(effects if found[-1] == 0 else job.wait())
    return found


# Pauses


def test_the_first_restart_is_immediate_and_from_the_second_fast_failure_pauses_double() -> None:
    job = Job(max_restarts=100)

    assert pauses(job, *[9.9] * 9) == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_round_that_ran_ten_seconds_ends_the_row() -> None:
    job = Job(max_restarts=100)

    assert pauses(job, 1, 1, 1, 10, 1, 1, 1) == [0, 1, 2, 0, 0, 1, 2]


def test_time_in_the_round_counts_to_the_failure_not_to_the_end_of_the_stop() -> None:
    job = Job(max_restarts=100)
    job.fails(1)
    job.tell(job.failed(), 1)

    assert announced(job.tell(job.gone(), after_s=30)).delay_s == 1


@pytest.mark.parametrize(("most_s", "wanted"), [(0, [0, 0, 0, 0]), (0.5, [0, 0.5, 0.5, 0.5])])
def test_pauses_are_no_longer_than_the_longest_allowed(most_s: float, wanted: list[float]) -> None:
    job = Job(max_restarts=100, max_restart_delay_s=most_s)

    assert pauses(job, 1, 1, 1, 1) == wanted


def test_a_row_of_failures_without_end_is_no_matter() -> None:
    job = Job(max_restarts=2000, max_restart_delay_s=30)

    assert pauses(job, *[1] * 2000)[-1] == 30


def test_nothing_starts_before_the_pause_is_over_and_a_late_loop_starts_it_all_the_same() -> None:
    job = Job(max_restarts=9)
    pauses(job, 1)
    assert announced(job.fails()).delay_s == 1

    assert job.tell(Ticked(), after_s=0.99) == []
    assert started(job.tell(Ticked(), after_s=500))
    assert job.tell(Ticked()) == []


def test_a_stop_request_in_a_pause_ends_the_job_at_once_as_stopped() -> None:
    job = Job(max_restarts=9)
    pauses(job, 1)
    job.fails()

    assert outcome(job.tell(StopRequested("a", TERM))) == Outcome(OutcomeKind.STOPPED, signum=TERM)
    assert job.coordinator.deadline is None
    assert job.tell(Ticked(), after_s=99) == []


def test_a_node_that_fails_in_a_pause_ends_the_job() -> None:
    job = Job(max_restarts=9)
    pauses(job, 1)
    job.fails()

    assert outcome(job.tell(NodeFailed("a", "lost"))).kind is OutcomeKind.NODE_FAILED


# The window


def test_a_window_allows_so_many_restarts_within_any_stretch_of_its_length() -> None:
    """Times are those of the restarts: 20, 40; a third at 60 would be one too many in 50 s."""
    job = Job(max_restarts=2, restart_window_s=50)
    assert started(job.fails(20))
    assert started(job.fails(20))

    ending = outcome(job.fails(20))

    assert ending.kind is OutcomeKind.FAILED
    assert not ending.cannot_heal


def test_restarts_leave_the_window_and_the_count_goes_on() -> None:
    job = Job(max_restarts=2, restart_window_s=50)

    seen = [announced(job.fails(26)) for _ in range(6)]

    assert [each.restart_count for each in seen] == [1, 2, 3, 4, 5, 6]
    assert [each.in_window for each in seen] == [1, 2, 2, 2, 2, 2]
    assert job.coordinator.restart_count == 6


def test_a_restart_that_was_made_late_counts_from_when_it_was_made() -> None:
    job = Job(max_restarts=2, restart_window_s=50)
    job.fails(1)
    job.fails(1)
    assert started(job.tell(Ticked(), after_s=48))

    assert job.fails(15) != []
    assert job.coordinator.phase is not Phase.CLOSED, "the first has left the window"
    assert outcome(job.fails(15)).kind is OutcomeKind.FAILED, "the second has not"


# What cannot heal


def ending(*explained: Explained, **limits: float | bool | None) -> Outcome | None:
    """Of a job whose first round failed like that; None if it goes on."""
    effects = Job(max_restarts=3, **limits).fails(1.0, *explained)
    return None if started(effects) else outcome(effects)


def test_what_cannot_heal_is_not_tried_again() -> None:
    found = ending(HOPELESS)

    assert found is not None
    assert (found.kind, found.cannot_heal) == (OutcomeKind.FAILED, "no such module")
    assert [failure.local_rank for failure in found.failures] == [0]


@pytest.mark.parametrize(
    "explained",
    [
        pytest.param([], id="nothing is known"),
        pytest.param([HOPEFUL], id="can heal"),
        pytest.param([HOPELESS, Explained(1, "killed", True)], id="another one can heal"),
    ],
)
def test_what_may_heal_is_tried_again(explained: list[Explained]) -> None:
    assert ending(*explained) is None


def test_what_cannot_heal_is_tried_again_if_it_is_to_be_always() -> None:
    assert ending(HOPELESS, restart_on_always=True) is None


def test_what_cannot_heal_in_a_later_round_is_tried_again() -> None:
    """It ran before: the file system may have hung, somebody may be editing."""
    job = Job(max_restarts=3)
    job.fails(1)

    assert announced(job.fails(1, HOPELESS)).restart_count == 2


def test_a_store_that_was_lost_first_is_replaced_whatever_the_workers_say_of_it() -> None:
    job = Job(max_restarts=3)
    job.tell(job.failed(None))
    job.tell(job.failed(0), after_s=1)

    assert started(job.tell(job.gone(HOPELESS)))


def test_without_a_restart_to_lose_nothing_is_said_of_healing() -> None:
    effects = Job(max_restarts=0).fails(1.0, HOPELESS)

    assert outcome(effects).cannot_heal == ""


def test_a_stop_request_after_a_failure_that_cannot_heal_leaves_the_job_failed() -> None:
    job = Job(max_restarts=3)
    job.tell(job.failed())
    job.tell(StopRequested("a", TERM), after_s=1)

    assert outcome(job.tell(job.gone(HOPELESS))).kind is OutcomeKind.FAILED


@pytest.mark.parametrize(("second", "goes_on"), [(HOPELESS, False), (HOPEFUL, True)])
def test_the_failed_workers_of_all_nodes_have_to_agree(second: Explained, goes_on: bool) -> None:
    job = Job("a", "b", max_restarts=3)
    job.tell(job.failed(0, "a"))
    job.tell(job.failed(0, "b"))
    assert job.tell(job.gone(HOPELESS, node="a")) == []

    assert started(job.tell(job.gone(second, node="b"))) == goes_on


# The grace of the others


def stops(effects: Sequence[CoordinatorEffect]) -> list[tuple[str, StopReason, int]]:
    return [(e.node, e.reason, e.signum) for e in effects if isinstance(e, StopRound)]


def test_the_others_are_stopped_when_the_grace_is_over() -> None:
    job = Job("a", "b", failure_grace_s=5)
    first = job.failed(0, age_s=0.5)

    assert job.tell(first) == [AnnounceGrace(first.failure, 5)]
    assert job.tell(job.failed(1), after_s=1) == []
    assert job.tell(Ticked(), after_s=3.49) == []
    wanted = [(node, StopReason.FAILURE, TERM) for node in "ab"]
    assert stops(job.tell(Ticked(), after_s=0.02)) == wanted


def test_a_late_loop_stops_them_all_the_same() -> None:
    job = Job(failure_grace_s=5)
    job.tell(job.failed())

    assert stops(job.tell(Ticked(), after_s=500)) == [("a", StopReason.FAILURE, TERM)]
    assert job.tell(Ticked(), after_s=500) == []


def test_a_failure_that_is_told_too_late_for_a_grace_stops_them_at_once() -> None:
    job = Job(failure_grace_s=5)

    assert stops(job.tell(job.failed(age_s=6))) == [("a", StopReason.FAILURE, TERM)]


def test_the_grace_ends_when_no_worker_is_left_to_wait_for() -> None:
    """One node's have all failed, the other's have succeeded: only helpers may be left."""
    job = Job("a", "b", failure_grace_s=5)
    job.tell(job.failed(0))
    job.tell(GroupSucceeded("b", 0))

    assert stops(job.tell(job.failed(1))) != []


def test_the_round_is_over_when_all_are_gone_within_the_grace() -> None:
    job = Job("a", "b", failure_grace_s=5, max_restarts=1)
    job.tell(job.failed(0))
    assert job.tell(job.gone(node="b")) == []

    assert started(job.tell(job.gone(node="a")))
    assert job.coordinator.deadline is None


def test_a_job_of_one_worker_has_nobody_to_wait_for() -> None:
    coordinator = Coordinator(Limits(failure_grace_s=5))
    coordinator.handle(NodeJoined("a", "host-a", 1, "default", OFFER), 0)
    failure = Failure("a", "host-a", 0, 0, 0, 7, ExitStatus(3))

    assert stops(coordinator.handle(WorkerFailed("a", 0, failure, 0.0), 1)) != []


def test_a_stop_request_in_the_grace_stops_them_at_once_by_its_signal() -> None:
    job = Job(failure_grace_s=5, max_restarts=1)
    job.tell(job.failed())

    asked = job.tell(StopRequested("a", signal.SIGINT), after_s=1)

    assert stops(asked) == [("a", StopReason.SIGNAL, signal.SIGINT)]
    assert job.coordinator.deadline is None
    assert outcome(job.tell(job.gone())).kind is OutcomeKind.STOPPED


def test_a_stop_request_in_the_grace_of_the_last_failure_leaves_the_job_failed() -> None:
    job = Job(failure_grace_s=5)
    job.tell(job.failed())
    job.tell(StopRequested("a", TERM), after_s=1)

    assert outcome(job.tell(job.gone())).kind is OutcomeKind.FAILED


# The lines

FAILURE = Failure("a", "host-a", 0, 1, 5, 7, ExitStatus(3))


@pytest.mark.parametrize(
    ("restart", "line"),
    [
        (AnnounceRestart(FAILURE, 1, 5), "restart 1 of 5"),
        (AnnounceRestart(FAILURE, 3, 5, 2.0), "restart 3 of 5 in 2 s"),
        (AnnounceRestart(FAILURE, 3, 5, 0.5), "restart 3 of 5 in 0.5 s"),
        (AnnounceRestart(FAILURE, 7, 3, 0.0, 3600, 2), "restart 2 of 3 within 1 h (7 in all)"),
        (
            AnnounceRestart(FAILURE, 7, 3, 4.0, 90, 2),
            "restart 2 of 3 within 90 s (7 in all) in 4 s",
        ),
    ],
)
def test_a_restart_is_announced_with_what_counts_and_how_soon(
    restart: AnnounceRestart, line: str
) -> None:
    said = restart_line(
        restart.cause,
        restart.restart_count,
        restart.max_restarts,
        delay_s=restart.delay_s,
        window_s=restart.window_s,
        in_window=restart.in_window,
    )
    assert said == f"rank 5 (local rank 1, pid 7) exited with code 3; {line}"


def test_a_grace_is_announced_with_its_option() -> None:
    line = "waiting 5 s (--failure-grace) before the other workers are stopped"
    assert grace_line(FAILURE, 5.0).endswith(f" exited with code 3; {line}")


def test_a_job_that_could_be_restarted_in_vain_says_how_to_have_it() -> None:
    line = not_restarted_line(Outcome(OutcomeKind.FAILED, (FAILURE,), cannot_heal="no such module"))

    assert line == "not restarted: this cannot heal (no such module); --restart-on=always overrides"
    assert not_restarted_line(Outcome(OutcomeKind.FAILED, (FAILURE,))) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90 s"), (600, "10 min"), (7200, "2 h"), (86400, "1 d"), (0, "0 s")]
)
def test_durations_are_said_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# Real workers


def failing(tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> Run:
    """A run whose worker fails in every round, and leaves a dump of each."""
    dump = (PROGRAMS / "env_dump.py", "--fail-times", "99")
    return finished(*options, *dump, env={"DUMP_DIR": str(tmp_path), **(env or {})})


def restarts_said(run: Run) -> list[str]:
    said = [line for line in run.stderr.splitlines() if "; restart " in line]
    return [line.rpartition("; ")[2] for line in said]


def test_fast_failures_are_restarted_with_pauses_that_are_said(tmp_path: Path) -> None:
    before = time.monotonic()
    run = failing(tmp_path, "--max-restarts=3", "--max-restart-delay=0.4")

    assert run.process.returncode == 3
    wanted = ["restart 1 of 3", "restart 2 of 3 in 0.4 s", "restart 3 of 3 in 0.4 s"]
    assert restarts_said(run) == wanted
    assert time.monotonic() - before > 0.8


def test_a_stop_in_a_pause_ends_the_job(tmp_path: Path) -> None:
    words = ("--max-restarts=9", "--no-python", "sh", "-c", "exit 3")
    with Run(*words) as run:
        run.says("restart 3 of 9 in 2 s")

        run.signal(signal.SIGTERM)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert "restart 4" not in run.stderr
        assert run.stderr.splitlines()[-1] == "phalanx: stopped on request (SIGTERM)"
        run.nothing_left()


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_window_is_kept_and_workers_see_the_number(tmp_path: Path, by_variable: bool) -> None:
    options = ["--max-restart-delay=0"]
    env = {"PET_MAX_RESTARTS": "2/1h"} if by_variable else {}
    run = failing(tmp_path, *options, *([] if by_variable else ["--max-restarts=2/1h"]), env=env)

    assert run.process.returncode == 3
    assert restarts_said(run) == [f"restart {n} of 2 within 1 h ({n} in all)" for n in (1, 2)]
    seen = [dump["env"]["TORCHELASTIC_MAX_RESTARTS"] for dump in dumps(tmp_path)]
    assert seen == ["2", "2", "2"]


def test_restarts_go_on_when_older_ones_have_left_the_window(tmp_path: Path) -> None:
    """One within 1 s, and each round takes longer."""
    options = ("--max-restarts=1/1s", "--no-python")
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 2 && exit 0; sleep 1.1; exit 4'
    run = finished(*options, "sh", "-c", script)

    assert run.process.returncode == 0, run.stderr
    assert len(restarts_said(run)) == 2


@pytest.mark.parametrize(("option", "rounds"), [("failure", 1), ("always", 3)])
def test_a_missing_module_is_tried_once_unless_it_is_to_be_always(
    tmp_path: Path, option: str, rounds: int
) -> None:
    script = tmp_path / "s.py"
    script.write_text("print('a round', flush=True)\nimport there_is_no_such_module\n")
    options = ("--max-restarts=2", "--max-restart-delay=0", f"--restart-on={option}")

    run = finished("--nproc-per-node=2", *options, script)

    assert run.process.returncode == 1
    assert run.stdout.count("a round") >= rounds
    assert len(restarts_said(run)) == rounds - 1
    said = "phalanx: not restarted: this cannot heal (" in run.stderr
    assert said == (option == "failure")


def graceful(tmp_path: Path, *options: str, workers: int = 3) -> Run:
    """Workers that write down their signals."""
    return Run(f"--nproc-per-node={workers}", *options, LOG_SIGNALS, "--dir", tmp_path)


def pids(run: Run, folder: Path, count: int) -> list[int]:
    """Of the workers, when all are set up."""
    paths = [folder / f"ready_{rank}" for rank in range(count)]
    eventually(lambda: all(path.exists() for path in paths), what=f"workers; {run.stderr}")
    return [int(path.read_text().partition('"pid": ')[2].partition(",")[0]) for path in paths]


def told(folder: Path, rank: int) -> list[str]:
    return list(lines_of(folder / f"signals_{rank}.log"))


def test_the_others_have_the_grace_before_they_are_stopped(tmp_path: Path) -> None:
    with graceful(tmp_path, "--failure-grace=1") as run:
        victim = pids(run, tmp_path, 3)[0]
        before = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        line = "was killed by SIGKILL; waiting 1 s (--failure-grace) before the other workers are"
        run.says(line)
        assert told(tmp_path, 1) == []

        assert run.wait(AT_ONCE_S) == 137
        assert time.monotonic() - before > 1
        assert [told(tmp_path, rank) for rank in (1, 2)] == [["0 SIGTERM"]] * 2


def test_a_grace_ends_when_all_workers_have(tmp_path: Path) -> None:
    with graceful(tmp_path, "--failure-grace=600") as run:
        for pid in pids(run, tmp_path, 3):
            os.kill(pid, signal.SIGKILL)

        assert run.wait(AT_ONCE_S) == 137


def test_a_stop_request_ends_a_grace(tmp_path: Path) -> None:
    with graceful(tmp_path, "--failure-grace=600", "--max-restarts=1") as run:
        os.kill(pids(run, tmp_path, 3)[0], signal.SIGKILL)
        run.says("waiting 600 s")

        run.signal(signal.SIGQUIT)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert [told(tmp_path, rank) for rank in (1, 2)] == [["0 SIGQUIT"]] * 2


@pytest.mark.parametrize("how", ["grace is over", "signal", "failure"])
def test_the_shutdown_timeout_holds_on_every_way_to_a_stop(tmp_path: Path, how: str) -> None:
    """The default is 27 s and more, so that a stop within a few is the option's."""
    options = ["--shutdown-timeout=1", *(["--failure-grace=0.2"] if how == "grace is over" else [])]
    family = (FAMILY, "--dir", tmp_path, "--kinds", "stubborn")
    with Run("--nproc-per-node=2", *options, *family) as run:
        worker = eventually(lambda: _worker(tmp_path), what="a worker")
        before = time.monotonic()
        if how == "signal":
            run.signal(signal.SIGTERM)
        else:
            os.kill(worker, signal.SIGKILL)

        assert run.wait(1 + AT_ONCE_S) == (STOPPED if how == "signal" else 137)
        assert time.monotonic() - before > 1
        assert "killed at the end of the shutdown timeout" in run.stderr
        run.nothing_left()


def _worker(folder: Path) -> int:
    """Pid of worker 0 when both are set up."""
    import json

    paths = [folder / f"ready_{rank}" for rank in (0, 1)]
    if not all(path.exists() and path.read_text().endswith("}") for path in paths):
        return 0
    return int(json.loads(paths[0].read_text())["worker"])


@pytest.mark.long
def test_pauses_are_as_long_as_is_said(tmp_path: Path) -> None:
    run = finished("--max-restarts=4", "--no-python", "sh", "-c", "date +%s.%N; exit 3")

    at = [float(line) for line in run.stdout.split()]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    for gap, wanted in zip(gaps, [0, 1, 2, 4], strict=True):
        assert wanted <= gap < wanted + 0.5 * SLACK
