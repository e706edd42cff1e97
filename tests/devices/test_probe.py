"""Asking another program: what it gets, how it ends, and that phalanx can be stopped meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import SLACK, Run, eventually, lines_of, wait_dead
from phalanx.devices import probe
from phalanx.devices.probe import Answer, ask
from phalanx.errors import ExitCode, PhalanxError, StartError
from phalanx.outcome import ExitStatus
from phalanx.workers.process import session_of

#: Asks `argv[1:]`, and says how that ended.
ASKER = """
import os, signal, sys
from phalanx.devices.probe import ask
from phalanx.errors import PhalanxError
held = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
signal.pthread_sigmask(signal.SIG_BLOCK, held)
try:
    answer = ask(["sh", "-c", sys.argv[1]], os.environ, whom="the shell", timeout_s=60)
    print("answered", answer.out.strip(), flush=True)
except PhalanxError as error:
    print("error", int(error.exit_code), error, flush=True)
print("held back", held[0] in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
"""
#: Says its pid, has a child of its own, and ignores what can be ignored.
STUBBORN = "trap '' TERM INT HUP QUIT; sleep 1000 & echo $$ >$PIDS; echo $! >>$PIDS; wait; wait"


def python(program: str, timeout_s: float = 60.0, **environ: str) -> Answer:
    argv = [sys.executable, "-c", program]
    return ask(argv, {**os.environ, **environ}, whom="python", timeout_s=timeout_s)


def test_what_is_said_comes_back_with_how_it_ended() -> None:
    answer = python("import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)")
    killed = python("import os; os.kill(os.getpid(), 9)")

    assert answer == Answer(ExitStatus(3), "a\n", "b\n")
    assert killed.status == ExitStatus(signal=9)


def test_what_cannot_be_started_is_told_from_what_fails() -> None:
    answer = ask(["/no/such/program"], os.environ, whom="nobody", timeout_s=60)

    assert answer.status == ExitStatus(errno=2)


def test_a_program_is_looked_up_on_the_path_it_gets(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o755)
    answer = ask(["tool"], {"PATH": f"{tmp_path}:/bin"}, whom="tool", timeout_s=60)

    assert answer.out == "found\n"


def test_more_than_a_pipe_holds_is_read_and_the_end_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_KEEP_OCTETS", 1000)
    answer = python("import sys; sys.stdout.write('x' * 1000000 + 'end'); sys.stderr.write('e')")

    assert answer.out == "x" * 997 + "end"
    assert answer.err == "e"


#: How many descriptors it has besides those that a child of ours is meant to have.
WHAT_IT_GOT = """
import os, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(os.readlink("/proc/self/fd/0"), os.getsid(0) == os.getpid(), status["SigBlk"].strip(),
      signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
meant = {*map(int, sys.argv[1:])}
for fd in {*map(int, os.listdir("/proc/self/fd"))} - meant:
    try:
        print("also", os.readlink(f"/proc/self/fd/{fd}"))
    except FileNotFoundError:
        pass  # the listing's own
"""


def test_it_has_no_terminal_no_blocked_signals_and_a_session_of_its_own() -> None:
    inherited = [fd for fd in os.listdir("/proc/self/fd") if is_inheritable(int(fd))]
    argv = [sys.executable, "-c", WHAT_IT_GOT, "0", "1", "2", *inherited]
    words = ask(argv, os.environ, whom="python", timeout_s=60).out

    assert words == "/dev/null True 0000000000000000 True\n"


def is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # the listing's own


def test_it_does_not_read_our_input() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKER, "cat; readlink /proc/self/fd/0"],
        input="of phalanx",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.splitlines()[0] == "answered /dev/null"


def test_the_end_of_the_answer_is_not_waited_for_where_a_child_keeps_it_open() -> None:
    """It is killed with the rest of the session."""
    answer = python(
        "import os, time; print(os.getpid(), flush=True); os.fork() or time.sleep(1000)"
    )
    # The parent of the two has ended, its child sleeps on with our pipes open.

    assert answer.status == ExitStatus(0)
    wait_dead_session(int(answer.out.split()[0]))


def wait_dead_session(session: int) -> None:
    def members() -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if session_of(pid) == session]

    eventually(lambda: not members(), what="an empty session")


def test_no_answer_in_time_is_an_error_and_the_child_is_gone(tmp_path: Path) -> None:
    environ = {**os.environ, "PIDS": str(tmp_path / "pids")}
    with pytest.raises(StartError) as caught:
        ask(["sh", "-c", STUBBORN], environ, whom="the shell", timeout_s=0.5, hint="a hint")

    assert str(caught.value) == "the shell has not answered for 0 s"
    assert (caught.value.hint, caught.value.exit_code) == ("a hint", ExitCode.UNAVAILABLE)
    for pid in (tmp_path / "pids").read_text().split():
        wait_dead(int(pid))


def test_a_long_wait_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "SAY_AFTER_S", 0.05)
    python("import time; time.sleep(0.5)", timeout_s=42)

    (line,) = capfd.readouterr().err.splitlines()
    assert line == "phalanx: waiting up to 42 s more for an answer of python"


@pytest.fixture
def wakeup_fd() -> Iterator[int]:
    """As if somebody had set one, as asyncio does."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end)
    yield write_end
    signal.set_wakeup_fd(before)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.usefixtures("wakeup_fd")
def test_signals_are_afterwards_as_before() -> None:
    watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)

    def state() -> list[object]:
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return [wakeup, mask, *map(signal.getsignal, watched), sorted(os.listdir("/proc/self/fd"))]

    before = state()
    python("")
    with pytest.raises(StartError):
        python("import time; time.sleep(1000)", timeout_s=0.1)

    assert state() == before


def test_a_signal_that_comes_after_the_answer_is_not_lost() -> None:
    with pytest.raises(PhalanxError) as caught, probe._Listening():
        os.kill(os.getpid(), signal.SIGTERM)

    assert str(caught.value) == "stopped on request (SIGTERM) before the workers were started"


def test_a_refused_process_is_an_error_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    with pytest.raises(StartError) as caught:
        python("")

    assert str(caught.value) == "python cannot be asked: Resource temporarily unavailable"
    assert caught.value.exit_code == ExitCode.SYSTEM
    assert "ulimit -u" in caught.value.hint


#: Its helper is two forks and a session away, and says its pid.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(1000)
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read().endswith("\\n"):
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(float(sys.argv[2]))
"""


def ask_with_daemon(tmp_path: Path, sleep_s: str, timeout_s: float) -> Answer:
    argv = [sys.executable, "-c", DAEMON, str(tmp_path / "pid"), sleep_s]
    return ask(argv, os.environ, whom="python", timeout_s=timeout_s)


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_what_left_the_session_of_the_asked_is_gone_with_the_answer(tmp_path: Path) -> None:
    answer = ask_with_daemon(tmp_path, "0", 60)

    assert answer == Answer(ExitStatus(0), "asked\n", "")
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_left_the_session_of_the_asked_is_gone_without_an_answer(tmp_path: Path) -> None:
    with pytest.raises(StartError):
        ask_with_daemon(tmp_path, "1000", 3.0 * SLACK)

    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_left_the_session_of_the_asked_is_gone_when_the_asker_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "daemon.py").write_text(DAEMON)
    with asker(tmp_path, f"exec {sys.executable} {tmp_path}/daemon.py $PIDS 1000") as run:
        pid = eventually(lambda: [*lines_of(tmp_path / "pids")], what="the daemon's pid")[0]
        run.signal(signal.SIGKILL)

        wait_dead(int(pid))


def test_children_that_were_there_before_and_theirs_are_left_alone() -> None:
    """Also one that loses its parent just then, as what a shell left that became phalanx."""
    words = ["sh", "-c", "sleep 1000 & echo $!; read line"]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as before:
        assert before.stdin is not None
        assert before.stdout is not None
        below = int(before.stdout.readline())
        fd = before.stdin.fileno()
        # The asked has the shell end, by its input, during the question.
        os.set_inheritable(fd, True)
        assert python(f"import os; os.write({fd}, b'go\\n')").status == ExitStatus(0)
        assert before.wait(60) == 0
        try:
            assert not is_gone(below)
        finally:
            os.kill(below, signal.SIGKILL)


def test_a_long_answer_is_known_to_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_KEEP_OCTETS", 1000)

    assert python("print('x' * 1000)").cut
    assert not python("print('x' * 999)").cut
    assert not python("import sys; sys.stderr.write('x' * 1001)").cut


# Stopped meanwhile


def asker(tmp_path: Path, shell: str) -> Run:
    (tmp_path / "asker.py").write_text(ASKER)
    words = (str(tmp_path / "asker.py"), shell)
    return Run(*words, launcher=[sys.executable], env={"PIDS": str(tmp_path / "pids")})


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_stop_signal_ends_the_question_at_once(tmp_path: Path, signum: signal.Signals) -> None:
    with asker(tmp_path, STUBBORN) as run:
        pids = wait_for_pids(tmp_path)
        run.signal(signum)

        assert run.wait(2.0 * SLACK) == 0
        name = signum.name
        said = f"error 120 stopped on request ({name}) before the workers were started"
        assert run.stdout.splitlines() == [said, "held back True"]
        for pid in pids:
            wait_dead(pid)


def wait_for_pids(tmp_path: Path) -> list[int]:
    def look() -> list[str]:
        lines = list(lines_of(tmp_path / "pids"))
        return lines if len(lines) == 2 else []

    return list(map(int, eventually(look, what="the child's pids")))


def test_a_signal_that_was_held_back_before_counts(tmp_path: Path) -> None:
    program = ASKER.replace("try:", "os.kill(os.getpid(), signal.SIGINT)\ntry:")
    done = subprocess.run(
        [sys.executable, "-c", program, "sleep 1000"], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines()[0].startswith("error 120 stopped on request (SIGINT)")


def test_nohups_wish_is_kept(tmp_path: Path) -> None:
    program = ASKER.replace("held =", "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nheld =")
    program = program.replace("try:", "os.environ['ASKER'] = str(os.getpid())\ntry:", 1)
    shell = "kill -HUP $ASKER; echo on"
    done = subprocess.run(
        [sys.executable, "-c", program, shell], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.splitlines()[0] == "answered on"


def test_when_the_asker_is_killed_so_is_the_child(tmp_path: Path) -> None:
    with asker(tmp_path, "echo $$ >$PIDS; echo 1 >>$PIDS; exec sleep 1000") as run:
        pid = wait_for_pids(tmp_path)[0]
        run.signal(signal.SIGKILL)

        wait_dead(pid)
