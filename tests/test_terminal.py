"""In a terminal and in a shell phalanx behaves as a Unix program does.

Keys are pressed in a real terminal with a shell in it (`terminal.Terminal`), terminals are closed,
and streams too. Workers write down when they ran, so that it can be seen when they stood still.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, SLACK, Run, eventually, finished, lines_of, python_path
from terminal import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal, phalanx, state_of

TICKS = PROGRAMS / "ticks.py"
KINDS = "child,session,detached,chain"
STOPPED = "120"  #: phalanx's exit code after a stop on request
#: What a shell shows of a job that SIGTSTP has stopped.
SUSPENDED = str(128 + signal.SIGTSTP)
PAUSE_S = 0.5


# A job whose processes write down when they run


def ticks(folder: Path, *options: str, save_s: float = 0.0, code: int = 0) -> str:
    """The command line of a job of two workers, each with helpers of every kind."""
    words = ("--dir", folder, "--kinds", KINDS, "--save-seconds", save_s, "--code", code)
    return phalanx("--nproc-per-node=2", *options, TICKS, *words)


def ready(folder: Path, restart_count: int = 0) -> list[int]:
    """The pids of both workers, once they and their helpers run."""
    paths = [folder / f"ready_{rank}_{restart_count}" for rank in (0, 1)]
    eventually(lambda: all(path.exists() for path in paths), 60, "both workers")
    return [int(path.read_text()) for path in paths]


def times(folder: Path) -> dict[str, list[float]]:
    """When each process, or chain of processes, ran."""
    return {
        path.name: [float(line) for line in path.read_text().splitlines()]
        for path in folder.glob("ticks_*")
    }


def go_on(folder: Path, restart_count: int = 0) -> None:
    """Let the job end."""
    (folder / f"go_{restart_count}").touch()


def wait_for_ticks(folder: Path) -> None:
    """Wait until every process has run once more."""
    counts = {name: len(lines) for name, lines in times(folder).items()}
    eventually(
        lambda: all(len(lines) > counts[name] for name, lines in times(folder).items()),
        what=f"more than {counts}",
    )


def wait_for(seconds: float) -> None:
    """Let time pass, for what is not to happen in it."""
    time.sleep(seconds)


def press_ctrl_z(terminal: Terminal) -> None:
    terminal.press(CTRL_Z)
    terminal.expect("Stopped")
    assert terminal.ask("$?") == SUSPENDED


def assert_stands_still(folder: Path) -> None:
    """Nothing of the job runs, for a while."""
    began = time.monotonic()
    wait_for(PAUSE_S)
    ran = {name: stamps[-1] - began for name, stamps in times(folder).items() if stamps}
    assert all(last < 0 for last in ran.values()), ran


def running(terminal: Terminal) -> set[int]:
    """What runs, or could, as `ps` shows it."""
    return {pid for pid in terminal.processes() if state_of(pid) not in "TZX"}


def assert_no_traceback(text: str) -> None:
    assert "internal error" not in text
    ours = re.search(r'File "[^"]*/phalanx/(agent|cli|console|net|workers)/', text)
    assert ours is None, "a traceback of ours"


# Ctrl-Z and fg


def test_ctrl_z_has_everything_stand_still_and_fg_go_on(tmp_path: Path) -> None:
    """Workers, their children, what has left the session, what forks on: all of it, both times."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path, code=3))
        ready(tmp_path)
        for _ in range(2):
            press_ctrl_z(terminal)
            assert_stands_still(tmp_path)
            terminal.line("fg")
            wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "3"
        terminal.nothing_left(terminal.shell.pid)
        assert_no_traceback(terminal.screen)


def test_a_job_within_a_job_stands_still_with_it(tmp_path: Path) -> None:
    """For the outer one the inner one's agent, fork server and store are helpers like others."""
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx('--no-python')} {ticks(tmp_path, code=6)}")
        ready(tmp_path)
        press_ctrl_z(terminal)
        assert_stands_still(tmp_path)
        terminal.line("fg")
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "6"
        terminal.nothing_left(terminal.shell.pid)


def test_a_suspended_job_is_stopped_process_by_process(tmp_path: Path) -> None:
    """As `ps` shows it; fork server and writer are not: they are needed if the agent is killed."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)

        ours = {terminal.shell.pid, terminal.agent, *terminal.services}
        assert len(terminal.processes().keys() - ours) == 2 * (1 + len(KINDS.split(",")))
        assert running(terminal) == {terminal.shell.pid, *terminal.services}


def test_bg_goes_on_without_the_terminal(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path, code=4))
        ready(tmp_path)
        press_ctrl_z(terminal)
        terminal.line("bg")
        wait_for_ticks(tmp_path)
        assert terminal.ask("here") == "here"
        go_on(tmp_path)
        terminal.line("wait %1")

        assert terminal.ask("$?") == "4"
        terminal.nothing_left(terminal.shell.pid)


def test_kill_of_a_suspended_job_stops_it_as_ever(tmp_path: Path) -> None:
    """The shell sends SIGTERM and continues the job: workers can save."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)
        terminal.line("kill %1")
        terminal.nothing_left(terminal.shell.pid)
        terminal.line("wait %1")

        assert terminal.ask("$?") == STOPPED
        assert list(lines_of(tmp_path / "signals_0")) == ["0 SIGTERM"]
        assert (tmp_path / "saved_1").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_a_suspended_job_waits_for_fg(tmp_path: Path, signum: signal.Signals) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)
        os.kill(terminal.agent, signum)
        assert_stands_still(tmp_path)
        terminal.line("fg")

        assert terminal.ask("$?") == STOPPED
        assert list(lines_of(tmp_path / "signals_0")) == [f"0 {signum.name}"]
        terminal.nothing_left(terminal.shell.pid)


@pytest.mark.parametrize(("key", "name"), [(CTRL_C, "SIGINT"), (CTRL_BACKSLASH, "SIGQUIT")])
def test_a_key_after_fg_stops_the_job(tmp_path: Path, key: str, name: str) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)
        terminal.line("fg")
        wait_for_ticks(tmp_path)
        terminal.press(key)

        terminal.expect(f"phalanx: stopped on request ({name})\n")
        assert terminal.ask("$?") == STOPPED
        assert list(lines_of(tmp_path / "signals_1")) == [f"0 {name}"]
        terminal.nothing_left(terminal.shell.pid)


def test_a_second_ctrl_c_kills_also_with_a_pause_before_it(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path, save_s=1000.0))
        ready(tmp_path)
        terminal.press(CTRL_C)
        eventually(lambda: (tmp_path / "signals_1").exists(), what="the stop")
        press_ctrl_z(terminal)
        terminal.line("fg")
        eventually(lambda: state_of(terminal.agent) != "T", what="the agent goes on")
        wait_for(PAUSE_S)  # two within 0.2 s are one press
        terminal.press(CTRL_C)

        terminal.expect("phalanx: stopped on request (SIGINT)\n", 3 * SLACK)
        assert terminal.ask("$?") == STOPPED
        assert not (tmp_path / "saved_0").exists()
        terminal.nothing_left(terminal.shell.pid)


def test_a_stop_that_has_begun_goes_on_while_the_agent_is_suspended(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path, save_s=1.0))
        ready(tmp_path)
        terminal.press(CTRL_C)
        eventually(lambda: (tmp_path / "signals_0").exists(), what="the stop")
        press_ctrl_z(terminal)
        assert not (tmp_path / "saved_0").exists()
        agent = terminal.agent

        eventually(lambda: (tmp_path / "saved_0").exists() and (tmp_path / "saved_1").exists())
        assert state_of(agent) == "T"
        terminal.line("fg")
        terminal.expect("phalanx: stopped on request (SIGINT)\n")
        assert terminal.ask("$?") == STOPPED
        terminal.nothing_left(terminal.shell.pid)


def test_restarts_go_on_after_fg(tmp_path: Path) -> None:
    """One worker dies while the job stands still; it counts as soon as the job goes on."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path, "--max-restarts=2"))
        victim = ready(tmp_path)[0]
        press_ctrl_z(terminal)
        os.kill(victim, signal.SIGKILL)
        wait_for(PAUSE_S)
        assert not (tmp_path / "ready_0_1").exists()
        terminal.line("fg")
        victim = ready(tmp_path, 1)[1]
        press_ctrl_z(terminal)
        terminal.line("fg")
        os.kill(victim, signal.SIGKILL)
        ready(tmp_path, 2)
        go_on(tmp_path, 2)

        assert terminal.ask("$?") == "0"
        terminal.nothing_left(terminal.shell.pid)
        assert list(lines_of(tmp_path / "signals_1")) == ["0 SIGTERM"]


def test_helpers_of_workers_that_are_all_killed_while_suspended_are_stopped(tmp_path: Path) -> None:
    """A stop that begins by itself wakes what it is for: helpers do not wait for SIGKILL."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        workers = ready(tmp_path)
        press_ctrl_z(terminal)
        agent, services = terminal.agent, terminal.services
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

        terminal.nothing_left(terminal.shell.pid, agent, *services)
        terminal.line("fg")
        assert terminal.ask("$?") == "137"
        terminal.nothing_left(terminal.shell.pid)


def test_nothing_is_left_of_a_suspended_job_whose_agent_is_killed(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)

        os.kill(terminal.agent, signal.SIGKILL)

        terminal.nothing_left(terminal.shell.pid)


def test_a_suspended_job_whose_fork_server_is_killed_ends_after_fg(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)
        os.kill(terminal.fork_server, signal.SIGKILL)
        terminal.line("fg")

        terminal.expect("the fork server (pid ")
        terminal.expect("SIGKILL")
        assert terminal.ask("$?") != "0"
        terminal.nothing_left(terminal.shell.pid)
        assert_no_traceback(terminal.screen)


def test_a_fork_server_that_does_not_answer_does_not_keep_the_shell_waiting(tmp_path: Path) -> None:
    """Nor does the time that it does not answer in count against it when all goes on."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        server = terminal.fork_server
        os.kill(server, signal.SIGSTOP)
        press_ctrl_z(terminal)
        os.kill(server, signal.SIGCONT)
        terminal.line("fg")
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"


# Ctrl-Z, and something else before the job stands still


@contextmanager
def slow_to_suspend(terminal: Terminal) -> Iterator[None]:
    """Ctrl-Z takes as long as this lasts, but 2 s at most: the fork server does not answer."""
    server = terminal.fork_server
    os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_job_that_is_continued_before_it_stands_still_goes_on(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        with slow_to_suspend(terminal):
            os.kill(terminal.agent, signal.SIGTSTP)
            wait_for(0.2)
            os.kill(terminal.agent, signal.SIGCONT)
            wait_for(0.1)
        wait_for(PAUSE_S)
        wait_for_ticks(tmp_path)
        press_ctrl_z(terminal)
        assert_stands_still(tmp_path)
        terminal.line("fg")
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"
        assert terminal.screen.count("Stopped") == 1


def test_sigcont_right_after_sigtstp_has_the_job_go_on(tmp_path: Path) -> None:
    """Whether it has stopped in between or not, so that the shell may have seen it stopped."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        agent = terminal.agent
        for number in range(40):
            os.kill(agent, signal.SIGTSTP)
            wait_for(number % 20 * 0.0002)
            os.kill(agent, signal.SIGCONT)
            wait_for(0.03)  # time to stop all the same
            eventually(lambda: state_of(agent) != "T", 5, "the agent goes on")
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        terminal.nothing_left(terminal.shell.pid)


@pytest.mark.parametrize("continued", [True, False], ids=["kill %1", "kill"])
def test_a_stop_signal_is_not_kept_waiting_by_a_ctrl_z_before_it(
    tmp_path: Path, continued: bool
) -> None:
    """The shell's `kill %1` continues the job as well, if it knows that it is stopped."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        agent = terminal.agent
        with slow_to_suspend(terminal):
            os.kill(agent, signal.SIGTSTP)
            wait_for(0.2)
            os.kill(agent, signal.SIGTERM)
            if continued:
                os.kill(agent, signal.SIGCONT)
            wait_for(0.1)

        assert terminal.ask("$?") == STOPPED
        assert list(lines_of(tmp_path / "signals_0")) == ["0 SIGTERM"]
        assert (tmp_path / "saved_1").exists()
        terminal.nothing_left(terminal.shell.pid)


def test_ctrl_z_pressed_again_before_the_job_stands_still_is_one_ctrl_z(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        with slow_to_suspend(terminal):
            for _ in range(3):
                terminal.press(CTRL_Z)
                wait_for(0.15)
        terminal.expect("Stopped")
        terminal.line("fg")
        wait_for(PAUSE_S)
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"
        assert terminal.screen.count("Stopped") == 1


# What is below us, and looks stopped or dead


def test_what_was_stopped_before_ctrl_z_stays_stopped_after_fg(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        worker = ready(tmp_path)[0]
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        child = int(children[0])  # of the kind `child`
        for _ in range(2):
            os.kill(child, signal.SIGSTOP)
            eventually(lambda: state_of(child) == "T", what="a stopped helper")
            for _ in range(2):
                press_ctrl_z(terminal)
                terminal.line("fg")
                eventually(lambda: state_of(worker) != "T", what="the worker goes on")
                wait_for(0.1)
                assert state_of(child) == "T"
            os.kill(child, signal.SIGCONT)
            wait_for_ticks(tmp_path)
            press_ctrl_z(terminal)
            terminal.line("fg")
            wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"


#: Its main thread exits, by the system call `exit`, and another one writes on.
WITHOUT_MAIN_THREAD = """
import ctypes, os, platform, sys, threading, time
def run():
    while not os.path.exists("go"):
        with open("ticks_0_thread", "a") as file:
            file.write(f"{time.monotonic()}\\n")
        time.sleep(0.005)
    os._exit(0)
threading.Thread(target=run).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


def test_a_process_whose_main_thread_has_exited_stands_still(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(WITHOUT_MAIN_THREAD)
    with Terminal(tmp_path) as terminal:
        terminal.line(phalanx("s.py"))
        eventually((tmp_path / "ticks_0_thread").exists, what="the worker")
        children = Path(f"/proc/{terminal.fork_server}/task/{terminal.fork_server}/children")
        eventually(lambda: "Z" in map(state_of, map(int, children.read_text().split())))
        for _ in range(2):
            press_ctrl_z(terminal)
            assert_stands_still(tmp_path)
            terminal.line("fg")
            wait_for_ticks(tmp_path)
        (tmp_path / "go").touch()

        assert terminal.ask("$?") == "0"


TRACED = """
import ctypes, os, time
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # any process may trace us
while not os.path.exists("go"):
    with open("ticks_0_worker", "a") as file:
        file.write(f"{time.monotonic()}\\n")
    time.sleep(0.005)
"""
#: As `strace -p PID` does it, but that the first system call is held until there is `release`.
TRACES = """
import ctypes, os, pathlib, sys, time
SYSCALL, SEIZE, INTERRUPT, LISTEN, EVENT_STOP = 24, 0x4206, 0x4207, 0x4208, 128
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
def ptrace(what, data=0):
    if libc.ptrace(what, pid, None, ctypes.c_void_p(data)):
        sys.exit(os.strerror(ctypes.get_errno()))
ptrace(SEIZE, 1)  # TRACESYSGOOD
ptrace(INTERRUPT)
while True:
    _, status = os.waitpid(pid, 0x40000000)
    if not os.WIFSTOPPED(status):
        sys.exit()
    signum = os.WSTOPSIG(status)
    if signum & 0x80:
        pathlib.Path("held").touch()
        while not os.path.exists("release"):
            time.sleep(0.01)
        ptrace(SYSCALL)
    elif status >> 16 == EVENT_STOP:
        ptrace(SYSCALL if signum == 5 else LISTEN)
    else:
        ptrace(SYSCALL, signum)
"""


def test_a_process_that_is_traced_from_outside_stands_still(tmp_path: Path) -> None:
    """It may have been stopped by its tracer only, which lets it go on in the next instant."""
    (tmp_path / "s.py").write_text(TRACED)
    with Terminal(tmp_path) as terminal:
        terminal.line(phalanx("s.py"))
        eventually((tmp_path / "ticks_0_worker").exists, what="the worker")
        server = terminal.fork_server
        worker = Path(f"/proc/{server}/task/{server}/children").read_text().split()[-1]
        tracer = subprocess.Popen([sys.executable, "-c", TRACES, worker], cwd=tmp_path)
        try:
            eventually((tmp_path / "held").exists, what="the tracer")
            press_ctrl_z(terminal)
            (tmp_path / "release").touch()
            wait_for(0.1)  # for what it was in the middle of
            assert_stands_still(tmp_path)
            terminal.line("fg")
            wait_for_ticks(tmp_path)
            press_ctrl_z(terminal)
            wait_for(0.1)
            assert_stands_still(tmp_path)
            terminal.line("fg")
            (tmp_path / "go").touch()

            assert terminal.ask("$?") == "0"
            assert tracer.wait(10) == 0
        finally:
            tracer.kill()
            tracer.wait()


def test_a_long_pause_is_not_held_against_the_fork_server(tmp_path: Path) -> None:
    """It is lost after five pings without an answer: turns of ours, not seconds of a clock."""
    with Terminal(tmp_path) as terminal:
        terminal.line(ticks(tmp_path))
        ready(tmp_path)
        press_ctrl_z(terminal)
        wait_for(7.0)
        terminal.line("fg")
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"


def test_processes_that_fork_on_and_on_all_stand_still(tmp_path: Path) -> None:
    """A hundred chains of processes, each of which forks the next and exits after 50 ms."""
    words = ("--count", "100", "--pause", "0.05")
    with Terminal(tmp_path) as terminal:
        terminal.line(phalanx(PROGRAMS / "fork_bomb.py", "--dir", tmp_path, *words))
        eventually((tmp_path / "ready_0").exists, what="all chains")
        for _ in range(3):
            press_ctrl_z(terminal)
            eventually(lambda: running(terminal) == {terminal.shell.pid, *terminal.services})
            there = terminal.processes()
            assert len(there) > 100
            wait_for(0.2)
            assert terminal.processes() == there
            terminal.line("fg")
            eventually(lambda there=there: len(terminal.processes().keys() - there.keys()) > 10)
        press_ctrl_z(terminal)
        os.kill(terminal.agent, signal.SIGKILL)

        terminal.nothing_left(terminal.shell.pid)


STEPS = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
folder = pathlib.Path(sys.argv[1])
ends = torch.zeros(1)
while not ends.item():
    ends[0] = float((folder / "go").exists())
    dist.all_reduce(ends)
    with open(folder / f"steps_{dist.get_rank()}", "a") as file:
        file.write(f"{time.monotonic()}\\n")
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_training_goes_on_after_a_pause(tmp_path: Path) -> None:
    """Connections between ranks, and to the store, outlast it."""
    (tmp_path / "steps.py").write_text(STEPS)
    logs = [tmp_path / "steps_0", tmp_path / "steps_1"]

    def steps() -> int:
        return min(len(list(lines_of(log))) for log in logs)

    with Terminal(tmp_path) as terminal:
        terminal.line(phalanx("--nproc-per-node=2", "steps.py", tmp_path))
        eventually(lambda: steps() > 10, 90, "training")
        press_ctrl_z(terminal)
        done = steps()
        wait_for(3.0)
        assert steps() == done
        terminal.line("fg")
        eventually(lambda: steps() > done + 10, what="more steps")
        (tmp_path / "go").touch()

        assert terminal.ask("$?") == "0"
        terminal.nothing_left(terminal.shell.pid)


#: Presses Ctrl-Z on itself in the middle of the start: when the agent's module is looked for.
SUSPENDS_ITSELF = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "phalanx.agent.agent":
            sys.meta_path.remove(self)
            os.kill(0, signal.SIGTSTP)
sys.meta_path.insert(0, Finder())
"""


def test_ctrl_z_during_the_start_stops_that(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SUSPENDS_ITSELF)
    with Terminal(tmp_path) as terminal:
        terminal.line(f"PYTHONPATH={tmp_path}:$PYTHONPATH {ticks(tmp_path)}")
        terminal.expect("Stopped")
        assert not list(tmp_path.glob("ready_*"))
        terminal.line("fg")
        ready(tmp_path)
        press_ctrl_z(terminal)
        terminal.line("fg")
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"


def test_a_user_signal_during_the_start_does_not_end_that(tmp_path: Path) -> None:
    """There is nobody yet to whom it could be handed on."""
    sends = SUSPENDS_ITSELF.replace("os.kill(0, signal.SIGTSTP)", "os.kill(0, signal.SIGUSR1)")
    both = sends.replace("SIGUSR1)", "SIGUSR1); os.kill(0, signal.SIGUSR2)")
    (tmp_path / "sitecustomize.py").write_text(both)
    env = {"PYTHONPATH": f"{tmp_path}:{python_path().get('PYTHONPATH', '')}"}
    run = finished("--no-python", "sh", "-c", "exit 7", env=env, cwd=tmp_path)

    assert run.process.returncode == 7, run.stderr


# SIGTSTP where there is no shell that could continue what it stops


def test_sigtstp_without_a_shell_above_does_not_stop_the_job_for_ever(tmp_path: Path) -> None:
    """As under nohup, systemd or cron: the kernel discards it for us, and the workers go on."""
    with Run("--nproc-per-node=2", TICKS, "--dir", tmp_path, "--kinds", KINDS) as run:
        ready(tmp_path)
        for _ in range(3):
            run.signal(signal.SIGTSTP)
            wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert run.wait() == 0


@pytest.mark.root
def test_sigtstp_to_pid_1_does_not_stop_the_job_for_ever(tmp_path: Path) -> None:
    launcher = ("unshare", "--pid", "--fork", "--mount-proc", *PHALANX)
    words = ("--nproc-per-node=2", TICKS, "--dir", tmp_path, "--kinds", KINDS)
    with Run(*words, launcher=launcher) as run:
        ready(tmp_path)
        (agent,) = (
            int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        )
        os.kill(agent, signal.SIGTSTP)
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert run.wait() == 0


def test_sigtstp_that_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(f"(trap '' TSTP; exec {ticks(tmp_path)})")
        ready(tmp_path)
        terminal.press(CTRL_Z)
        wait_for_ticks(tmp_path)
        go_on(tmp_path)

        assert terminal.ask("$?") == "0"
        assert "Stopped" not in terminal.screen


def test_sigtstp_stops_the_job_if_the_user_says_so(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        options = ("--signals-to-handle=SIGTSTP", "--shutdown-timeout=1")
        terminal.line(ticks(tmp_path, *options))
        ready(tmp_path)
        terminal.press(CTRL_Z)

        terminal.expect("phalanx: stopped on request (SIGTSTP)\n", timeout=60)
        assert terminal.ask("$?") == STOPPED


# stty tostop


def test_our_lines_from_the_background_do_not_stop_the_job(tmp_path: Path) -> None:
    """With `stty tostop` the terminal stops whoever writes from the background, but workers, which
    lead sessions of their own; so our lines beside theirs are no reason either.
    """
    program = "import signal; print(signal.getsignal(signal.SIGTTOU).name, flush=True); exit(5)"
    (tmp_path / "s.py").write_text(program)
    with Terminal(tmp_path) as terminal:
        terminal.line("stty tostop")
        terminal.line(phalanx("--max-restarts=1", "s.py") + " & wait $!")

        terminal.expect("SIG_DFL")
        terminal.expect("restart 1 of 1")
        terminal.expect("SIG_DFL")
        terminal.expect("phalanx: ")
        assert terminal.ask("$?") == "5"


def test_our_first_lines_from_the_background_do_not_stop_us_either(tmp_path: Path) -> None:
    """As long as there is no agent: a wrong command line, for example."""
    with Terminal(tmp_path) as terminal:
        terminal.line("stty tostop")
        terminal.line(phalanx("--nproc-per-node=2") + " & wait $!")

        terminal.expect("phalanx: error: ")
        assert terminal.ask("$?") == "64"
        assert "Stopped" not in terminal.screen


# The terminal is a stream like others


def test_a_worker_reads_what_is_typed(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print('hello', input(), flush=True)")
    with Terminal(tmp_path) as terminal:
        terminal.line(phalanx("s.py"))
        terminal.line("world")

        terminal.expect("hello world\n")
        assert terminal.ask("$?") == "0"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_with_a_closed_stream_runs_and_stops(tmp_path: Path, closed: str) -> None:
    launcher = ("sh", "-c", f'exec "$@" {closed}', "sh", *PHALANX)
    words = ("--nproc-per-node=2", TICKS, "--dir", tmp_path, "--kinds", KINDS)
    with Run(*words, launcher=launcher) as run:
        ready(tmp_path)
        run.signal(signal.SIGTERM)

        assert run.wait() == int(STOPPED)
        assert (tmp_path / "saved_0").exists()
        assert run.stderr in ("", "phalanx: stopped on request (SIGTERM)\n")
        run.nothing_left()


def shell(command: str, folder: Path, **options: object) -> Run:
    """Run a command line in bash, to its end."""
    launcher = ("bash", "-c", command)
    return finished(launcher=launcher, cwd=folder, **options)


@pytest.mark.parametrize(
    ("program", "code"),
    [("--no-python yes", 128 + signal.SIGPIPE), ("lines.py", 1)],
    ids=["dies of SIGPIPE", "fails with EPIPE"],
)
def test_a_reader_that_has_seen_enough_ends_the_job_by_its_first_failure(
    tmp_path: Path, program: str, code: int
) -> None:
    (tmp_path / "lines.py").write_text("while True: print('y')")
    run = shell(f"{phalanx()} {program} | head -n 1; echo ${{PIPESTATUS[*]}}", tmp_path)

    assert run.stdout == f"y\n{code} 0\n"
    assert_no_traceback(run.stderr)
    run.nothing_left()


def test_nobody_reads_and_nobody_minds(tmp_path: Path) -> None:
    run = shell(f"{phalanx('--no-python', 'true')} | true; echo ${{PIPESTATUS[*]}}", tmp_path)

    assert (run.stdout, run.stderr) == ("0 0\n", "")


def test_stderr_that_nobody_reads_hides_our_lines_and_nothing_else(tmp_path: Path) -> None:
    words = ("--max-restarts=1", "--no-python", "sh", "-c", "sleep 0.3; exit 7")
    run = shell(f"{phalanx(*words)} 2> >(true)", tmp_path)

    assert run.process.returncode == 7


def test_an_empty_environment_is_enough(tmp_path: Path) -> None:
    words = ("--no-python", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE")
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    keep = [f"{name}={value}" for name, value in path.items()]
    run = finished(*words, launcher=("env", "-i", *keep, *PHALANX), cwd=tmp_path)

    assert (run.process.returncode, run.stdout, run.stderr) == (0, "0 of 1\n", "")


def test_timeout_stops_a_job(tmp_path: Path) -> None:
    """It sends the signal to us, and then to its process group, in which we are: one stop."""
    words = ("--nproc-per-node=2", TICKS, "--dir", tmp_path, "--kinds", KINDS)
    launcher = ("timeout", "5", *PHALANX)
    with Run(*words, launcher=launcher) as run:
        ready(tmp_path)

        assert run.wait() == 124
        assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"
        assert list(lines_of(tmp_path / "signals_0")) == ["0 SIGTERM"]
        assert (tmp_path / "saved_1").exists()
        run.nothing_left()


# The terminal goes away


def keeping_status(command: str, *, trap: str = ":") -> str:
    """The command in a shell that outlives the hang-up and writes down its exit status.

    What it has a trap for is at its default in the command; what it ignores is ignored.
    """
    keeps = f"trap '{trap}' HUP TERM; {command}; echo $? > status.partial; mv status.partial status"
    return shlex.join(["sh", "-c", keeps])


def status(folder: Path) -> str:
    eventually((folder / "status").exists, 6 * SLACK, "the end of the job")
    return (folder / "status").read_text().strip()


def in_the_foreground(terminal: Terminal) -> None:
    pass


def suspended(terminal: Terminal) -> None:
    press_ctrl_z(terminal)


def in_the_background(terminal: Terminal) -> None:
    press_ctrl_z(terminal)
    terminal.line("bg")
    assert terminal.ask("here") == "here"


@pytest.mark.parametrize(
    "bring", [in_the_foreground, suspended, in_the_background], ids=lambda bring: bring.__name__
)
def test_a_closed_terminal_stops_the_job_and_workers_can_save(
    tmp_path: Path, bring: Callable[[Terminal], None]
) -> None:
    """Also when stdout and stderr are that terminal, where nothing can be written any more.

    A stopped job gets SIGTERM from bash as well, and may see that first.
    """
    with Terminal(tmp_path) as terminal:
        terminal.line(keeping_status(ticks(tmp_path, save_s=0.5)))
        ready(tmp_path)
        bring(terminal)

        terminal.hang_up()

        assert status(tmp_path) == STOPPED
        terminal.nothing_left()
        (told,) = lines_of(tmp_path / "signals_0")
        assert told == "0 SIGHUP" or (told == "0 SIGTERM" and bring is suspended)
        assert (tmp_path / "saved_0").exists()
        assert (tmp_path / "saved_1").exists()


def test_what_is_printed_into_a_closed_terminal_is_lost_and_nothing_else(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(keeping_status(ticks(tmp_path, "--max-restarts=1", code=9), trap=""))
        victim = ready(tmp_path)[0]
        terminal.hang_up()
        terminal.shell.wait(10)

        os.kill(victim, signal.SIGKILL)
        ready(tmp_path, 1)
        go_on(tmp_path, 1)

        assert status(tmp_path) == "9"
        terminal.nothing_left()


PRINTS_WHEN_DONE = (
    "import os, pathlib, sys, time\n"
    "folder = pathlib.Path(sys.argv[1])\n"
    "(folder / 'ready').touch()\n"
    "while not (folder / 'go').exists(): time.sleep(0.01)\n"
    "print('done')\n"
    "sys.stdout.flush()\n"
    "(folder / 'done').touch()\n"
)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("nohup {}", "nohup.out"),
        ("nohup {} &", "nohup.out"),
        ("setsid {} > out 2>&1 < /dev/null", "out"),
        ("setsid {} > out 2>&1 < /dev/null &", "out"),
        ("{} > out 2>&1 < /dev/null & disown", "out"),
    ],
)
def test_a_job_that_is_to_outlive_the_terminal_does(
    tmp_path: Path, command: str, output: str
) -> None:
    (tmp_path / "s.py").write_text(PRINTS_WHEN_DONE)
    with Terminal(tmp_path) as terminal:
        terminal.line(command.format(phalanx("s.py", tmp_path)))
        eventually((tmp_path / "ready").exists, what="the worker")
        server = terminal.fork_server

        terminal.hang_up()
        terminal.shell.wait(10)
        wait_for(PAUSE_S)
        assert server in terminal.processes()
        (tmp_path / "go").touch()

        terminal.nothing_left()
        assert (tmp_path / "done").exists()
        assert (tmp_path / output).read_text().endswith("done\n")


def test_a_job_outlives_the_script_that_started_it_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(PRINTS_WHEN_DONE)
    script = f"{phalanx('s.py', tmp_path)} > out 2>&1 &"
    with Run(launcher=("sh", "-c", script), cwd=tmp_path) as run:
        assert run.wait() == 0
        eventually((tmp_path / "ready").exists, what="the worker")
        (tmp_path / "go").touch()

        run.nothing_left()
        assert (tmp_path / "out").read_text() == "done\n"


def test_a_killed_tmux_session_stops_the_job_and_workers_can_save(tmp_path: Path) -> None:
    tmux = ("tmux", "-L", tmp_path.name, "-f", "/dev/null")
    script = tmp_path / "job.sh"
    script.write_text(ticks(tmp_path) + "\n")
    with Terminal(tmp_path, program=(*tmux, "new-session", "-s", "job", "bash")) as terminal:
        try:
            terminal.line("bash job.sh")
            ready(tmp_path)

            subprocess.run([*tmux, "kill-session", "-t", "job"], check=True, cwd=tmp_path)

            terminal.nothing_left(timeout=6 * SLACK)
            assert list(lines_of(tmp_path / "signals_1")) == ["0 SIGHUP"]
            assert (tmp_path / "saved_0").exists()
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
