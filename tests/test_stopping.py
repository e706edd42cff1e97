"""Stopping: who gets which signal when, what a worker can rely on, and what phalanx says of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PROGRAMS, SLACK, Run, dumps, eventually, finished, lines_of, wait_dead

FAMILY = PROGRAMS / "family.py"
LOG_SIGNALS = PROGRAMS / "log_signals.py"
SAVE = PROGRAMS / "save_on_term_plain.py"
SAVE_TORCH = PROGRAMS / "save_on_term.py"
STOPPED = 120
#: "At once", on a loaded machine; the timeouts it is told from are 27 s and more.
AT_ONCE_S = 3 * SLACK


def ready(run: Run, folder: Path, count: int) -> list[dict[str, Any]]:
    """What each worker wrote when it was set up."""
    paths = [folder / f"ready_{rank}" for rank in range(count)]
    eventually(
        lambda: all(path.exists() for path in paths) or run.process.poll() is not None,
        timeout=60,
        what="all workers ready",
    )
    assert run.process.poll() is None, run.stderr
    return [json.loads(path.read_text() or "{}") for path in paths]


def signals(folder: Path, rank: int = 0) -> list[str]:
    """What a worker wrote into its log: "ROUND NAME" or "KIND NAME SECONDS"."""
    return list(lines_of(folder / f"signals_{rank}.log"))


def logging_run(tmp_path: Path, *options: str, workers: int = 2, **more: Any) -> Run:
    words = (f"--nproc-per-node={workers}", LOG_SIGNALS, "--dir", tmp_path, *options)
    return Run(*words, **more)


# Saving


def assert_saved_whole(folder: Path, rank: int, log: str) -> None:
    """The save is complete, and no helper saw a signal before it was."""
    saved = folder / f"saved_{rank}"
    assert len(saved.read_text().splitlines()) == 10
    saved_at_s = saved.stat().st_mtime - time.time() + time.monotonic()
    for line in lines_of(folder / log):
        assert json.loads(line)["monotonic_s"] > saved_at_s - 0.05, "a helper was told too early"


def test_a_worker_saves_with_its_helpers_alive(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", SAVE, "--dir", tmp_path, "--save-seconds", "1") as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        for rank in (0, 1):
            assert_saved_whole(tmp_path, rank, f"helper_{rank}.log")
        run.nothing_left()


@pytest.mark.torch
def test_a_worker_saves_with_its_data_loaders_alive(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", SAVE_TORCH, "--dir", tmp_path) as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        for rank in (0, 1):
            assert_saved_whole(tmp_path, rank, f"loader_{rank}.log")
        run.nothing_left()


def test_workers_save_when_another_one_fails(tmp_path: Path) -> None:
    with Run("--nproc-per-node=2", SAVE, "--dir", tmp_path, "--save-seconds", "1") as run:
        victim = ready(run, tmp_path, 2)[1]["pid"]

        os.kill(victim, signal.SIGKILL)

        assert run.wait() == 137
        assert_saved_whole(tmp_path, 0, "helper_0.log")


def test_a_script_below_a_python_wrapper_saves_with_its_helpers_alive(tmp_path: Path) -> None:
    """The wrapper dies of the signal; what it leaves gets it then, and the rest of the time."""
    words = (PROGRAMS / "run_script.py", SAVE, "--dir", tmp_path, "--save-seconds", "1")
    with Run("--nproc-per-node=2", *words) as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        for rank in (0, 1):
            assert_saved_whole(tmp_path, rank, f"helper_{rank}.log")


@pytest.mark.parametrize("trap", ["", "trap : TERM; "], ids=["plain", "with a trap"])
def test_a_script_below_a_shell_gets_the_signal(tmp_path: Path, trap: str) -> None:
    """A shell that waits for a command passes nothing on: so the whole group is told."""
    script = f"{trap}{sys.executable} {LOG_SIGNALS} --dir {tmp_path}; exit $?"
    with Run("--no-python", "bash", "-c", script) as run:
        ready(run, tmp_path, 1)

        run.signal(signal.SIGTERM)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert set(signals(tmp_path)) == {"0 SIGTERM"}
        run.nothing_left()


def test_a_script_below_a_shell_saves_with_its_helpers_if_only_the_leader_is_told(
    tmp_path: Path,
) -> None:
    script = f"{sys.executable} {SAVE} --dir {tmp_path} --save-seconds 1; exit $?"
    words = ("--stop-signal-to=leader", "--no-python", "bash", "-c", script)
    with Run(*words) as run:
        ready(run, tmp_path, 1)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        assert_saved_whole(tmp_path, 0, "helper_0.log")


def test_helpers_are_told_at_once_if_the_group_is_to_be(tmp_path: Path) -> None:
    """As under torchrun, where a worker cannot save with their help."""
    words = ("--stop-signal-to=group", SAVE, "--dir", tmp_path, "--save-seconds", "1")
    with Run(*words) as run:
        ready(run, tmp_path, 1)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        assert len(list(lines_of(tmp_path / "helper_0.log"))) == 2
        assert not (tmp_path / "saved_0").exists()


# Helpers that stay


def rank_0_exits(tmp_path: Path, kinds: str) -> tuple[str, ...]:
    """Rank 0 leaves helpers and exits with 0; rank 1 waits."""
    family = f"{sys.executable} {FAMILY} --dir {tmp_path}"
    script = f'test "$RANK" = 0 && exec {family} --kinds {kinds} --exit 0; exec {family}'
    leader = "--stop-signal-to=leader"
    return ("--nproc-per-node=2", leader, "--no-python", "sh", "-c", script)


@pytest.mark.parametrize("kind", ["child", "daemon", "session", "detached"])
def test_a_helper_of_a_worker_that_exited_0_lives_until_the_group_ends(
    tmp_path: Path, kind: str
) -> None:
    with Run(*rank_0_exits(tmp_path, kind)) as run:
        first, second = ready(run, tmp_path, 2)
        wait_dead(first["worker"])
        assert first[kind] in run.processes()
        assert not signals(tmp_path)

        os.kill(second["worker"], signal.SIGKILL)

        assert run.wait(AT_ONCE_S) == 137
        assert [line.split()[:2] for line in signals(tmp_path)] == [[kind, "SIGTERM"]]
        run.nothing_left()


def test_helpers_that_are_left_when_all_workers_exited_0_are_stopped(tmp_path: Path) -> None:
    kinds = ("child", "grandchild", "daemon", "session", "detached")
    words = ("--nproc-per-node=2", FAMILY, "--dir", tmp_path, "--kinds", ",".join(kinds))
    run = finished(*words, "--exit", "0", timeout=AT_ONCE_S)

    assert run.process.returncode == 0
    assert run.stderr == ""
    for rank in (0, 1):
        assert {line.split()[0] for line in signals(tmp_path, rank)} == set(kinds)


def test_helpers_get_term_before_the_end_while_their_worker_lives(tmp_path: Path) -> None:
    """Half-way, in a stop that is shorter than 6 s."""
    kinds = ("--kinds", "child,stubborn")
    with Run("--shutdown-timeout=2", FAMILY, "--dir", tmp_path, *kinds) as run:
        ready(run, tmp_path, 1)
        before = time.monotonic()

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        (line,) = signals(tmp_path)
        assert line.startswith("child SIGTERM ")
        assert float(line.split()[2]) - before >= 1.0


# The end of the time


def test_what_outlives_the_shutdown_timeout_is_killed_and_that_is_said(tmp_path: Path) -> None:
    words = ("--shutdown-timeout=1", "--nproc-per-node=2", FAMILY, "--dir", tmp_path)
    with Run(*words, "--kinds", "stubborn") as run:
        ready(run, tmp_path, 2)
        before = time.monotonic()

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        assert time.monotonic() - before >= 1.0
        said = "phalanx: killed at the end of the shutdown timeout: local ranks 0, 1"
        assert said in run.stderr.splitlines()
        assert run.stderr.endswith("phalanx: stopped on request (SIGTERM)\n")
        run.nothing_left()


def test_a_shutdown_timeout_of_0_kills_at_once(tmp_path: Path) -> None:
    words = ("--shutdown-timeout=0", "--nproc-per-node=2", FAMILY, "--dir", tmp_path)
    with Run(*words, "--kinds", "stubborn") as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGTERM)

        assert run.wait(AT_ONCE_S) == STOPPED
        run.nothing_left()


def test_a_second_int_kills_at_once(tmp_path: Path) -> None:
    with logging_run(tmp_path, "--go") as run:
        ready(run, tmp_path, 2)
        run.signal(signal.SIGINT)
        eventually(lambda: signals(tmp_path, 0) and signals(tmp_path, 1), what="INT is forwarded")

        # Two within 0.2 s count as one, and how fast we are is not known: press until it is heard.
        eventually(lambda: run.process.poll() is not None or run.signal(signal.SIGINT), AT_ONCE_S)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert signals(tmp_path, 0) == ["0 SIGINT"]
        run.nothing_left()


def test_a_wrapper_that_hands_on_what_the_terminal_has_sent_kills_nothing(tmp_path: Path) -> None:
    """Two INTs within 0.2 s are one: the workers have their time."""
    with logging_run(tmp_path, "--go") as run:
        ready(run, tmp_path, 2)
        run.signal(signal.SIGINT)
        eventually(lambda: signals(tmp_path, 0) and signals(tmp_path, 1), what="INT is forwarded")
        run.signal(signal.SIGINT)
        run.signal(signal.SIGUSR1)
        eventually(lambda: len(signals(tmp_path, 0)) == 2, what="USR1 is forwarded after it")

        (tmp_path / "go").touch()

        assert run.wait(AT_ONCE_S) == STOPPED
        assert [signals(tmp_path, rank) for rank in (0, 1)] == [["0 SIGINT", "0 SIGUSR1"]] * 2


def test_a_second_term_changes_nothing(tmp_path: Path) -> None:
    """Schedulers send it to every process they know, and again."""
    with logging_run(tmp_path, "--go") as run:
        ready(run, tmp_path, 2)
        run.signal(signal.SIGTERM)
        eventually(lambda: signals(tmp_path, 0) and signals(tmp_path, 1), what="TERM is forwarded")
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGUSR1)
        eventually(lambda: "0 SIGUSR1" in signals(tmp_path), what="USR1 is forwarded")

        (tmp_path / "go").touch()

        assert run.wait() == STOPPED
        assert signals(tmp_path, 0) == ["0 SIGTERM", "0 SIGUSR1"]


# Which signals


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
@pytest.mark.parametrize("code", [0, 5])
def test_a_stop_signal_is_forwarded_as_itself_and_the_job_counts_as_stopped(
    tmp_path: Path, name: str, code: int
) -> None:
    """Whatever the workers exit with."""
    with logging_run(tmp_path, "--code", str(code)) as run:
        ready(run, tmp_path, 2)

        run.signal(getattr(signal, name))

        assert run.wait() == STOPPED
        assert [signals(tmp_path, rank) for rank in (0, 1)] == [[f"0 {name}"]] * 2
        assert run.stderr == f"phalanx: stopped on request ({name})\n"


def test_usr1_and_usr2_are_forwarded_and_stop_nothing(tmp_path: Path) -> None:
    with logging_run(tmp_path) as run:
        ready(run, tmp_path, 2)

        for name in ("SIGUSR1", "SIGUSR2"):
            run.signal(getattr(signal, name))
            for rank in (0, 1):
                wanted = f"0 {name}"
                eventually(lambda r=rank, w=wanted: w in signals(tmp_path, r), what=wanted)

        assert run.process.poll() is None


def test_signals_to_handle_says_which_stop(tmp_path: Path) -> None:
    words = ("--signals-to-handle=SIGUSR1,SIGTERM", FAMILY, "--dir", tmp_path)
    with Run(*words) as run:
        ready(run, tmp_path, 1)

        run.signal(signal.SIGUSR1)

        assert run.wait() == STOPPED
        assert "stopped on request (SIGUSR1)" in run.stderr


def test_hup_that_was_ignored_at_the_start_is_ignored(tmp_path: Path) -> None:
    """nohup: by phalanx, and by the workers, which inherit that."""

    def ignore_hup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with logging_run(tmp_path, preexec_fn=ignore_hup) as run:
        pids = [entry["pid"] for entry in ready(run, tmp_path, 2)]
        for pid in (run.pid, *pids):
            os.kill(pid, signal.SIGHUP)

        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        assert [signals(tmp_path, rank) for rank in (0, 1)] == [["0 SIGTERM"]] * 2
        assert "SIGTERM" in run.stderr


# When


def test_a_signal_before_the_workers_are_started_ends_the_job_and_nothing_is_started(
    tmp_path: Path,
) -> None:
    """It is pending, and blocked, when phalanx is exec'ed: the first thing that its loop sees."""

    def send_blocked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGTERM)

    environment = {"DUMP_DIR": str(tmp_path)}
    with Run(PROGRAMS / "env_dump.py", env=environment, preexec_fn=send_blocked) as run:
        assert run.wait(AT_ONCE_S) == STOPPED
        assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"
        assert not list(tmp_path.iterdir())
        run.nothing_left()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Before there are handlers it kills, as any program; after that the job is stopped.

    An INT while Python itself is starting makes it exit with 1, or is printed and forgotten. A
    worker that has lost it so is killed at the end of the shutdown timeout.
    """
    signum = getattr(signal, name)
    died = {-signum, 128 + signum, STOPPED, *([1] if name == "SIGINT" else [])}
    for tenth in range(12):
        words = ("--nproc-per-node=2", "--shutdown-timeout=1", FAMILY, "--dir", tmp_path)
        with Run(*words, "--kinds", "daemon") as run:
            time.sleep(tenth * 0.01)  # a moment of the start, whichever it is here
            run.signal(signum)
            assert run.wait(AT_ONCE_S) in died
            run.nothing_left()


LOSES_INTERRUPTS = """
import os, signal, sys
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "phalanx.agent.agent":
            Interrupted()
sys.meta_path.insert(0, Finder())
"""


def test_an_int_during_an_import_is_not_lost(tmp_path: Path) -> None:
    """Python prints and forgets a KeyboardInterrupt that is raised in a callback or finalizer."""
    (tmp_path / "sitecustomize.py").write_text(LOSES_INTERRUPTS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Run(FAMILY, "--dir", tmp_path, env={"PYTHONPATH": path}) as run:
        assert run.wait(AT_ONCE_S) == STOPPED
        run.nothing_left()


def test_a_stop_while_a_failure_is_being_stopped_means_no_restart(tmp_path: Path) -> None:
    words = ("--max-restarts=3", "--nproc-per-node=2", LOG_SIGNALS, "--dir", tmp_path, "--go")
    with Run(*words) as run:
        victim = ready(run, tmp_path, 2)[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: signals(tmp_path, 1) == ["0 SIGTERM"], what="the other is stopped")
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGUSR1)
        eventually(lambda: signals(tmp_path, 1)[1:] == ["0 SIGUSR1"], what="both have been seen")

        (tmp_path / "go").touch()

        assert run.wait() == STOPPED
        assert "restart" not in run.stderr
        assert len(signals(tmp_path, 1)) == 2


def test_a_stop_that_takes_long_says_whom_it_waits_for(tmp_path: Path) -> None:
    words = ("--shutdown-timeout=600", "--nproc-per-node=2", LOG_SIGNALS, "--dir", tmp_path)
    with Run(*words, "--go") as run:
        ready(run, tmp_path, 2)
        run.signal(signal.SIGINT)

        run.says("phalanx: waiting up to 597 s more for local ranks 0, 1 to stop")

        run.signal(signal.SIGINT)
        assert run.wait(AT_ONCE_S) == STOPPED


def test_an_interrupt_that_was_ignored_at_the_start_stops_the_workers_with_term(
    tmp_path: Path,
) -> None:
    """As in a script that runs `phalanx ... &`: workers inherit that they ignore INT."""

    def ignore_int() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with logging_run(tmp_path, preexec_fn=ignore_int) as run:
        ready(run, tmp_path, 2)

        run.signal(signal.SIGINT)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert [signals(tmp_path, rank) for rank in (0, 1)] == [["0 SIGTERM"]] * 2


def test_a_stop_just_after_a_restart_stops_the_new_round(tmp_path: Path) -> None:
    words = ("--max-restarts=3", "--nproc-per-node=2", LOG_SIGNALS, "--dir", tmp_path)
    with Run(*words) as run:
        victim = ready(run, tmp_path, 2)[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        run.says("restart 1 of 3")

        run.signal(signal.SIGTERM)

        assert run.wait(AT_ONCE_S) == STOPPED
        assert "restart 2" not in run.stderr
        run.nothing_left()


# What workers inherit


IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTSTP)
BLOCKED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGRTMIN)


def unusual_start() -> None:
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
    resource.setrlimit(
        resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1])
    )


def by_hand(environment: dict[str, str], preexec_fn: Callable[[], None] | None) -> None:
    subprocess.run(
        [sys.executable, "-u", PROGRAMS / "env_dump.py"],
        env={**os.environ, **environment, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"},
        preexec_fn=preexec_fn,
        start_new_session=True,  # as `Run`: without it, glibc's posix_spawn ignores two signals
        check=True,
    )


@pytest.mark.parametrize("preexec_fn", [None, unusual_start], ids=["usual", "unusual"])
def test_workers_start_with_what_phalanx_was_started_with(
    tmp_path: Path, preexec_fn: Callable[[], None] | None
) -> None:
    """Signal mask, dispositions, umask, limits, CPUs: as if they had been started by hand."""
    hand, ours = tmp_path / "hand", tmp_path / "ours"
    for folder in (hand, ours):
        folder.mkdir()
    by_hand({"DUMP_DIR": str(hand)}, preexec_fn)
    environment = {"DUMP_DIR": str(ours)}
    finished(
        *("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0"),
        *(PROGRAMS / "env_dump.py", "--fail-times", "1", "--gather", "2"),
        env=environment,
        preexec_fn=preexec_fn,
    )

    (wanted,) = dumps(hand)
    found = dumps(ours)
    assert len(found) == 4
    for key in ("signals", "umask", "rlimits", "affinity"):
        assert [dump[key] for dump in found] == [wanted[key]] * 4, key
