"""What is around phalanx may be strange: an old Python or kernel, a stderr that nobody reads, a
parent that ignores signals, processes that are stopped. The job goes on, or ends as it should.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, SLACK, Run, eventually, finished, lines_of

STOPPED = 120
PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", *PHALANX)

#: Sends rubbish to the store, and then asks it, as a client would, whether it is still there.
ASKS_THE_STORE = """
import os, socket
address = ("localhost", int(os.environ["MASTER_PORT"]))
with socket.create_connection(address) as stranger:
    stranger.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    try:
        stranger.recv(1)
    except ConnectionError:
        pass
with socket.create_connection(address, timeout=20) as client:
    client.sendall(bytes.fromhex("00cef7853c") + b"\\x0dPONG")
    assert client.recv(4, socket.MSG_WAITALL) == b"PONG"
"""


def with_sitecustomize(folder: Path, source: str) -> dict[str, str]:
    """An environment in which every Python runs `source` first."""
    (folder / "sitecustomize.py").write_text(source)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


# An old Python or kernel

WITHOUT_PIDFD = "import os\ndel os.pidfd_open\n"
PIDFD_REFUSED = """
import os
def pidfd_open(pid, flags=0):
    raise OSError(38, "Function not implemented")
os.pidfd_open = pidfd_open
"""


@pytest.mark.parametrize("source", [WITHOUT_PIDFD, PIDFD_REFUSED], ids=["missing", "refused"])
def test_without_pidfds_jobs_run_and_stop(tmp_path: Path, source: str) -> None:
    environment = with_sitecustomize(tmp_path, source)
    run = finished("--nproc-per-node=2", "--no-python", "true", env=environment)
    assert (run.process.returncode, run.stderr) == (0, "")

    shell = "trap '' TERM; sleep 1000 & echo up; wait; wait"
    words = ("--shutdown-timeout=1", "--stop-signal-to=leader", "--no-python", "sh", "-c", shell)
    with Run(*words, env=environment) as run:
        run.says("up")
        run.signal(signal.SIGTERM)

        assert run.wait() == STOPPED
        run.nothing_left()


# A stderr that takes nothing


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The write end of a pipe that is full and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)
    os.close(reader)


def run_with_stderr(stderr: int, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PHALANX, *words], stderr=stderr, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("kind", ["closed", "disk full", "full"])
def test_a_line_that_cannot_be_printed_does_not_end_the_store(
    tmp_path: Path, full_pipe: int, kind: str
) -> None:
    script = tmp_path / "asks.py"
    script.write_text(ASKS_THE_STORE)
    reader, closed = os.pipe()
    os.close(reader)
    disk_full = os.open("/dev/full", os.O_WRONLY)
    stderr = {"closed": closed, "disk full": disk_full, "full": full_pipe}[kind]

    process = run_with_stderr(stderr, str(script))

    assert process.wait(30) == 0
    os.close(closed)
    os.close(disk_full)


def test_restarts_and_stops_do_not_wait_for_a_reader_of_stderr(
    tmp_path: Path, full_pipe: int
) -> None:
    log_signals = str(PROGRAMS / "log_signals.py")
    process = run_with_stderr(full_pipe, "--max-restarts=1", log_signals, "--dir", str(tmp_path))
    ready = tmp_path / "ready_0"
    eventually(ready.exists, what="the first round")
    worker = int(ready.read_text().partition('"pid": ')[2].partition(",")[0])
    ready.unlink()

    os.kill(worker, signal.SIGKILL)

    eventually(ready.exists, what="the second round")
    process.terminate()
    assert process.wait(3 * SLACK) == STOPPED
    assert list(lines_of(tmp_path / "signals_0.log")) == ["1 SIGTERM"]


# A parent's wishes


@pytest.mark.parametrize(("words", "code"), [(["none.py"], 66), (["--no-python", "true"], 0)])
def test_sigchld_that_was_ignored_at_the_start_is_no_trouble(words: list[str], code: int) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    run = finished(*words, preexec_fn=ignore)

    assert run.process.returncode == code
    assert "internal error" not in run.stderr


#: A signal in the middle of the start: when the agent's module is looked for.
SIGNALS_ITSELF = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "phalanx.agent.agent":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "launcher", [PHALANX, pytest.param(PID_1, marks=pytest.mark.root)], ids=["phalanx", "as PID 1"]
)
def test_a_signal_in_the_middle_of_the_start_stops_the_job(
    tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    environment = with_sitecustomize(tmp_path, SIGNALS_ITSELF)
    with Run("--no-python", "sleep", "1000", launcher=launcher, env=environment) as run:
        assert run.wait(30) == STOPPED
        assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"


# Processes that are stopped, or have let go


def test_nothing_is_left_of_an_agent_that_is_killed_while_its_fork_server_is_stopped() -> None:
    with Run("--nproc-per-node=2", "--no-python", "sleep", "1000") as run:
        eventually(
            lambda: list(run.processes().values()).count("sleep 1000") == 2, what="two workers"
        )
        os.kill(run.fork_server, signal.SIGSTOP)

        run.signal(signal.SIGKILL)

        run.wait()
        run.nothing_left()


def test_a_worker_that_is_stopped_hears_the_stop_signal(tmp_path: Path) -> None:
    with Run(PROGRAMS / "log_signals.py", "--dir", tmp_path) as run:
        ready = tmp_path / "ready_0"
        eventually(ready.exists, what="the worker")
        os.kill(int(ready.read_text().partition('"pid": ')[2].partition(",")[0]), signal.SIGSTOP)

        run.signal(signal.SIGTERM)

        assert run.wait(3 * SLACK) == STOPPED
        assert list(lines_of(tmp_path / "signals_0.log")) == ["0 SIGTERM"]


def test_a_helper_that_has_let_go_of_its_worker_is_not_taken_for_that_of_a_dead_one(
    tmp_path: Path,
) -> None:
    """It shows whose it is by the RANK it was started with, and is needed while that one saves."""
    run = finished("--nproc-per-node=2", PROGRAMS / "daemon_owner.py", "--dir", tmp_path)

    assert run.process.returncode == 3
    assert (tmp_path / "told").read_text() == "saved"


# Places


def test_a_relative_tmpdir_gives_absolute_error_files(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    program = "echo $TORCHELASTIC_ERROR_FILE"
    words = ("--no-python", "sh", "-c", program)
    run = finished(*words, cwd=tmp_path, env={"TMPDIR": "tmp"})

    assert run.stdout.startswith(f"{tmp_path}/tmp/phalanx_")


def test_from_a_removed_directory_modules_on_pythonpath_are_found(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shows.py").write_text("print('found')")
    gone = tmp_path / "gone"
    gone.mkdir()
    path = [str(tmp_path / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])]
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    launcher = ("sh", "-c", script, "sh", str(gone), sys.executable, "-m", "phalanx")
    run = finished("-m", "shows", launcher=launcher, env={"PYTHONPATH": os.pathsep.join(path)})

    assert (run.process.returncode, run.stdout) == (0, "found\n")


def test_a_script_in_a_named_pipe_is_not_taken_out_of_it(tmp_path: Path) -> None:
    pipe = tmp_path / "script"
    os.mkfifo(pipe)
    with Run(pipe) as run:
        with open(pipe, "w") as writer:
            writer.write("print('came through')")
        assert run.wait() == 0
        assert run.stdout == "came through\n"
