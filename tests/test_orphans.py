"""Nothing of a run outlives it, whichever of our processes is killed, and whatever workers start.

The promise is 2 s, asserted at three times that (`Run.nothing_left`). The random moments come from
a seed that is printed; PHALANX_TEST_SEED repeats one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, PROGRAMS, SLACK, Run, eventually, lines_of, wait_dead

FAMILY = PROGRAMS / "family.py"
KINDS = "child,grandchild,daemon,session,detached"
STUBBORN = f"{KINDS},stubborn"
VICTIMS = ("agent", "fork server", "group", "both")
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", *PHALANX)
#: How long the fork server may be silent.
SILENCE_S = 6.0


def family(tmp_path: Path, kinds: str = KINDS, *options: str, workers: int = 2, **more: Any) -> Run:
    arguments = (FAMILY, "--dir", tmp_path, "--kinds", kinds)
    return Run(f"--nproc-per-node={workers}", *options, *arguments, **more)


def ready(run: Run, folder: Path, count: int) -> list[dict[str, int]]:
    """The pids of each worker's family, when all are up."""
    paths = [folder / f"ready_{rank}" for rank in range(count)]
    eventually(
        lambda: all(path.exists() for path in paths) or run.process.poll() is not None,
        what="all workers ready",
    )
    assert run.process.poll() is None, run.stderr
    return [json.loads(path.read_text() or "{}") for path in paths]


def seeded(count: int) -> list[int]:
    """Seeds for so many runs; printed, so that one can be repeated."""
    given = os.environ.get("PHALANX_TEST_SEED")
    start = int(given) if given else random.randrange(2**32)
    print(f"PHALANX_TEST_SEED={start}")
    return [start + number for number in range(1 if given else count)]


def pause(seconds: float) -> None:
    """Let a moment pass that is random on purpose; nothing is waited for."""
    threading.Event().wait(seconds)


def fork_server_now(run: Run) -> int | None:
    named = (pid for pid, line in run.processes().items() if line == "phalanx fork server")
    return next(named, None)


def kill(run: Run, victim: str) -> bool:
    """Kill, whatever of it is there; whether the agent should live to say so."""
    server = fork_server_now(run) if victim in ("fork server", "both") else None
    if server is not None:
        os.kill(server, signal.SIGKILL)
        if victim == "fork server":
            return True
    if victim == "group":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        run.signal(signal.SIGKILL)
    return False


# One kill, at a known moment


@pytest.mark.parametrize("kinds", ["", KINDS, STUBBORN], ids=["alone", "families", "stubborn"])
@pytest.mark.parametrize("victim", ["agent", "group"])
def test_nothing_is_left_of_a_killed_agent(tmp_path: Path, victim: str, kinds: str) -> None:
    with family(tmp_path, kinds) as run:
        ready(run, tmp_path, 2)

        kill(run, victim)

        run.nothing_left()


@pytest.mark.parametrize("kinds", ["", KINDS, STUBBORN], ids=["alone", "families", "stubborn"])
def test_a_killed_fork_server_ends_the_job_and_nothing_is_left(tmp_path: Path, kinds: str) -> None:
    with family(tmp_path, kinds) as run:
        ready(run, tmp_path, 2)
        server = run.fork_server

        os.kill(server, signal.SIGKILL)

        assert run.wait() == 70
        assert f"the fork server (pid {server}) was killed by SIGKILL" in run.stderr
        run.nothing_left()


def test_workers_die_with_agent_and_fork_server_killed_at_once(tmp_path: Path) -> None:
    """Helpers of theirs are outside the promise then: nobody is left who would know them."""
    with family(tmp_path, "") as run:
        ready(run, tmp_path, 2)

        for pid in (run.fork_server, run.pid):
            os.kill(pid, signal.SIGKILL)

        run.nothing_left()


@pytest.mark.parametrize("victim", ["agent", "fork server"])
def test_nothing_is_left_of_a_shell_that_ignores_term_and_what_it_started(
    tmp_path: Path, victim: str
) -> None:
    script = 'trap "" TERM; (sleep 1000 & sleep 1000) & : > "$0"; while :; do sleep 1000; done'
    words = ("--nproc-per-node=1", "--no-python", "bash", "-c", script, tmp_path / "ready_0")
    with Run(*words) as run:
        ready(run, tmp_path, 1)

        kill(run, victim)

        run.nothing_left()


@pytest.mark.parametrize("victim", ["agent", "fork server"])
def test_nothing_is_left_of_a_stop_that_is_interrupted(tmp_path: Path, victim: str) -> None:
    """The stop signal is out, stubborn processes ignore it, and then one of ours is killed."""
    with family(tmp_path, STUBBORN, "--shutdown-timeout=60") as run:
        obedient = ready(run, tmp_path, 2)[0]["worker"]
        os.kill(obedient, signal.SIGKILL)  # its helpers are told now, the other's later
        told = tmp_path / "signals_0.log"
        eventually(lambda: len(list(lines_of(told))) >= 3, what="helpers have had the signal")

        kill(run, victim)

        run.nothing_left()


def test_a_stopped_fork_server_is_given_up_and_nothing_is_left(tmp_path: Path) -> None:
    with family(tmp_path, STUBBORN) as run:
        ready(run, tmp_path, 2)
        server = run.fork_server

        os.kill(server, signal.SIGSTOP)

        assert run.wait(SILENCE_S * SLACK) == 70
        assert f"the fork server (pid {server}) does not answer" in run.stderr
        run.nothing_left()


def test_a_fork_server_that_is_stopped_for_a_moment_is_not_given_up(tmp_path: Path) -> None:
    with family(tmp_path, "child") as run:
        ready(run, tmp_path, 2)
        os.kill(run.fork_server, signal.SIGSTOP)
        pause(1.5)
        os.kill(run.fork_server, signal.SIGCONT)

        run.signal(signal.SIGTERM)

        assert run.wait() == 120


def test_a_stopped_agent_that_goes_on_has_lost_nothing(tmp_path: Path) -> None:
    """Its own pause is not the fork server's silence."""
    with family(tmp_path, "child") as run:
        ready(run, tmp_path, 2)
        run.signal(signal.SIGSTOP)
        pause(1.5)
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGCONT)

        assert run.wait() == 120
        run.nothing_left()


# Random moments


def interrupted_start(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    victim = choose.choice(VICTIMS)
    with family(tmp_path, STUBBORN if victim != "both" else "") as run:
        pause(choose.uniform(0, 0.15))
        said = kill(run, victim)
        code = run.wait()
        if victim != "both":
            run.nothing_left()
        assert code == (70 if said else -signal.SIGKILL), f"seed {seed}, {victim}: {run.stderr}"


def interrupted_run(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    with family(tmp_path, choose.choice([KINDS, STUBBORN])) as run:
        ready(run, tmp_path, 2)
        pause(choose.uniform(0, 0.05))
        kill(run, choose.choice(VICTIMS[:3]))
        run.wait()
        run.nothing_left()


def interrupted_stop(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    timeout_s = choose.choice([0, 1])
    with family(
        tmp_path, choose.choice([KINDS, STUBBORN]), f"--shutdown-timeout={timeout_s}"
    ) as run:
        ready(run, tmp_path, 2)
        run.signal(choose.choice([signal.SIGTERM, signal.SIGINT]))
        pause(choose.uniform(0, 1.2))
        if run.process.poll() is None:
            kill(run, choose.choice(VICTIMS[:3]))
        run.wait()
        run.nothing_left()


PHASES = {"start": interrupted_start, "run": interrupted_run, "stop": interrupted_stop}


@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left_at_random_moments(tmp_path: Path, phase: str) -> None:
    repeat(tmp_path, phase, 4)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left_at_fifty_random_moments(tmp_path: Path, phase: str) -> None:
    repeat(tmp_path, phase, 50)


def repeat(tmp_path: Path, phase: str, count: int) -> None:
    for number, seed in enumerate(seeded(count)):
        folder = tmp_path / str(number)
        folder.mkdir()
        PHASES[phase](folder, seed)


# Very many processes


MANY = pytest.mark.parametrize(
    "bomb", [("--count=500",), ("--count=8", "--pause=0")], ids=["500 that fork on", "8 that rush"]
)


@MANY
@pytest.mark.parametrize("victim", ["agent", "fork server"])
def test_nothing_is_left_of_very_many_processes(
    tmp_path: Path, victim: str, bomb: tuple[str, ...]
) -> None:
    with Run(PROGRAMS / "fork_bomb.py", "--dir", tmp_path, *bomb) as run:
        ready(run, tmp_path, 1)

        kill(run, victim)

        run.wait()
        nothing_left_that_moves(run)


@MANY
def test_a_stop_clears_very_many_processes(tmp_path: Path, bomb: tuple[str, ...]) -> None:
    """They do not obey, since one that gets the signal may have forked the next already."""
    with Run("--shutdown-timeout=1", PROGRAMS / "fork_bomb.py", "--dir", tmp_path, *bomb) as run:
        ready(run, tmp_path, 1)

        run.signal(signal.SIGTERM)

        assert run.wait() == 120
        nothing_left_that_moves(run)


def nothing_left_that_moves(run: Run) -> None:
    """One look could miss a process that has just forked the next."""
    run.nothing_left()
    assert not any(run.processes() for _ in range(10))


# Children that are not ours


@pytest.fixture
def beside_sleep() -> tuple[str, ...]:
    """A launcher whose process has a child before it is phalanx."""
    return ("sh", "-c", 'sleep 1000 >/dev/null 2>&1 & exec "$@"', "sh", *PHALANX)


def sleeping(run: Run) -> list[int]:
    return [pid for pid, line in run.processes().items() if line == "sleep 1000"]


def test_a_child_from_before_outlives_the_job(
    tmp_path: Path, beside_sleep: tuple[str, ...]
) -> None:
    with family(tmp_path, "", launcher=beside_sleep) as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGINT)

        assert run.wait() == 120
        assert len(sleeping(run)) == 1
        assert len(run.processes()) == 1


def test_a_child_from_before_is_spared_when_the_tree_is_cleared(
    tmp_path: Path, beside_sleep: tuple[str, ...]
) -> None:
    with family(tmp_path, STUBBORN, launcher=beside_sleep) as run:
        ready(run, tmp_path, 2)

        os.kill(run.fork_server, signal.SIGKILL)

        assert run.wait() == 70
        assert len(sleeping(run)) == 1
        eventually(lambda: len(run.processes()) == 1, 2 * SLACK)


def test_a_child_from_before_that_ends_is_reaped(
    tmp_path: Path, beside_sleep: tuple[str, ...]
) -> None:
    with family(tmp_path, "", launcher=beside_sleep) as run:
        ready(run, tmp_path, 2)
        (child,) = sleeping(run)

        os.kill(child, signal.SIGKILL)

        wait_dead(child)
        eventually(lambda: not Path(f"/proc/{child}").exists(), what="it is reaped")


# As PID 1


def first_process(run: Run) -> int:
    """Phalanx itself, below `unshare`."""

    def look() -> int:
        below = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        return int(below[0]) if below else 0

    return eventually(look, what="the first process of the namespace")


@pytest.mark.root
def test_as_pid_1_a_job_runs_to_its_end(tmp_path: Path) -> None:
    with family(tmp_path, KINDS, launcher=NAMESPACE) as run:
        ready(run, tmp_path, 2)
        worker = next(p for p in children_of(run.fork_server) if not is_orphan(p))
        os.kill(worker, signal.SIGKILL)

        assert run.wait() == 137
        run.nothing_left()


@pytest.mark.root
def test_as_pid_1_a_worker_that_exits_0_ends_the_job_with_0(tmp_path: Path) -> None:
    words = ("--nproc-per-node=2", FAMILY, "--dir", tmp_path, "--kinds", KINDS, "--exit", "0")
    with Run("--shutdown-timeout=5", *words, launcher=NAMESPACE) as run:
        assert run.wait() == 0
        run.nothing_left()


@pytest.mark.root
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_as_pid_1_signals_stop_the_job(tmp_path: Path, signum: signal.Signals) -> None:
    """PID 1 has no default actions: without handlers it would not hear them."""
    with family(tmp_path, KINDS, launcher=NAMESPACE) as run:
        ready(run, tmp_path, 2)

        os.kill(first_process(run), signum)

        assert run.wait() == 120
        run.nothing_left()


@pytest.mark.root
def test_as_pid_1_strays_are_reaped(tmp_path: Path) -> None:
    """What others start in the container and leave behind comes to PID 1."""
    with family(tmp_path, "", launcher=NAMESPACE) as run:
        ready(run, tmp_path, 2)
        first = first_process(run)
        stray = "sleep 1000 </dev/null >/dev/null 2>&1 &"
        subprocess.run(["nsenter", "-t", str(first), "-p", "sh", "-c", stray], check=True)
        server = run.fork_server
        strays = eventually(lambda: set(children_of(first)) - {server}, what="a stray")

        for pid in strays:
            os.kill(pid, signal.SIGKILL)

        eventually(lambda: children_of(first) == [server], what="the stray is reaped")
        assert run.process.poll() is None


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_orphan(pid: int) -> bool:
    """A worker leads its session; what it has left behind does not, or has made one of its own."""
    return os.getsid(pid) != pid or not children_of(pid)


@pytest.mark.root
@pytest.mark.parametrize("victim", ["first process", "fork server"])
def test_as_pid_1_nothing_is_left_of_what_is_killed(tmp_path: Path, victim: str) -> None:
    with family(tmp_path, STUBBORN, launcher=NAMESPACE) as run:
        ready(run, tmp_path, 2)

        os.kill(first_process(run) if victim == "first process" else run.fork_server, 9)

        code = run.wait()
        run.nothing_left()
        assert victim == "first process" or code == 70


# What SIGKILL does not end


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup (v1) whose processes can be frozen: they do not even die then."""
    folder = Path(f"/sys/fs/cgroup/freezer/phalanx_test_{os.getpid()}")
    if not folder.parent.is_dir():
        pytest.skip("no cgroup v1 freezer here")
    folder.mkdir()
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    eventually(lambda: not (folder / "cgroup.procs").read_text(), what="the cgroup is empty")
    folder.rmdir()


def freeze(folder: Path, pid: int) -> None:
    (folder / "cgroup.procs").write_text(str(pid))
    (folder / "freezer.state").write_text("FROZEN")
    eventually(lambda: (folder / "freezer.state").read_text().strip() == "FROZEN")


@pytest.mark.long
@pytest.mark.root
def test_a_worker_that_cannot_be_killed_makes_the_node_unfit(tmp_path: Path, freezer: Path) -> None:
    """10 s after SIGKILL; it is named, and others are gone."""
    with family(tmp_path, "child", "--shutdown-timeout=0") as run:
        stuck = ready(run, tmp_path, 2)[1]["worker"]
        freeze(freezer, stuck)

        run.signal(signal.SIGTERM)

        assert run.wait(10 * SLACK) == 121
        assert f"SIGKILL did not end within 10 s: {stuck} (" in run.stderr
        assert set(run.processes()) == {stuck}
        (freezer / "freezer.state").write_text("THAWED")
        run.nothing_left()


@pytest.mark.long
@pytest.mark.root
def test_a_fork_server_without_agent_waits_for_what_cannot_be_killed_without_spinning(
    tmp_path: Path, freezer: Path
) -> None:
    with family(tmp_path, "child") as run:
        stuck = ready(run, tmp_path, 2)[1]["worker"]
        freeze(freezer, stuck)
        server = run.fork_server

        run.signal(signal.SIGKILL)

        def left() -> set[int]:
            """All that lives, but for the writer: it reads on as long as there is a worker."""
            return {pid for pid, line in run.processes().items() if line != "phalanx writer"}

        eventually(lambda: left() == {server, stuck})
        before = cpu_ticks(server)
        pause(3)
        assert cpu_ticks(server) - before < 0.5 * os.sysconf("SC_CLK_TCK")
        wait_dead(server, 10 * SLACK)
        (freezer / "freezer.state").write_text("THAWED")
        run.nothing_left()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
