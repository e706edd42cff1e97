"""An agent that has a second thread execs its fork server: everything works as with a fork.

Tracers and profilers start threads at import; a fork then could copy a lock that is held. Here a
`sitecustomize` on PYTHONPATH starts one in every interpreter that reads it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PROGRAMS, Run, dumps, eventually, finished

SITE = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2, signal.SIGTTOU)
BLOCKED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMIN)


@pytest.fixture
def threaded(tmp_path: Path) -> dict[str, str]:
    """An environment in which every interpreter has a second thread from its start."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    dump_dir = tmp_path / "dumps"
    dump_dir.mkdir()
    return {"PYTHONPATH": path, "DUMP_DIR": str(dump_dir)}


def dump_dir(environment: dict[str, str]) -> Path:
    return Path(environment["DUMP_DIR"])


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def was_execed(agent: int, server: int) -> bool:
    """A fork has its parent's auxiliary vector; an exec makes a new one."""
    vectors = [Path(f"/proc/{pid}/auxv").read_bytes() for pid in (agent, server)]
    return vectors[0] != vectors[1]


def waiting_run(environment: dict[str, str], *options: str, **popen: Any) -> Run:
    """Two workers that write their dumps and then wait to be stopped."""
    program = PROGRAMS / "env_dump.py"
    # The rank that would fail is not there: all wait.
    words = (program, "--fail-times", "9", "--fail-rank", "7")
    return Run("--nproc-per-node=2", *options, *words, env=environment, **popen)


def wait_for_dumps(run: Run, folder: Path, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(dumps(folder)) >= count, what=f"{count} dumps; {run.stderr}")
    return dumps(folder)


def test_only_an_agent_with_a_second_thread_execs_its_fork_server(
    threaded: dict[str, str], tmp_path: Path
) -> None:
    """And what started that thread is not run in the fork server, which must fork."""
    for environment, execs in ((threaded, True), ({**threaded, "PYTHONPATH": ""}, False)):
        if not execs:
            environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        with waiting_run(environment) as run:
            run.fork_server  # noqa: B018 (waits for it)
            assert was_execed(run.pid, run.fork_server) is execs
            assert threads_of(run.pid) == (2 if execs else 1)
            assert threads_of(run.fork_server) == 1


def test_a_job_runs_and_restarts(threaded: dict[str, str]) -> None:
    run = finished(
        *("--nproc-per-node=2", "--max-restarts=1", PROGRAMS / "env_dump.py"),
        *("--fail-times", "1", "--gather", "2"),
        env=threaded,
    )

    assert run.process.returncode == 0, run.stderr
    found = [(d["env"]["TORCHELASTIC_RESTART_COUNT"], d["env"]["RANK"]) for d in dumps_of(threaded)]
    assert found == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    run.nothing_left()


def dumps_of(environment: dict[str, str]) -> list[dict[str, Any]]:
    return dumps(dump_dir(environment))


def test_the_environment_of_the_workers_is_that_of_phalanx(threaded: dict[str, str]) -> None:
    """The fork server's own start leaves no trace in it."""
    finished("--nproc-per-node=1", PROGRAMS / "env_dump.py", env=threaded)
    with_exec = dumps_of(threaded)[0]
    for path in dump_dir(threaded).iterdir():
        path.unlink()
    finished(
        *("--nproc-per-node=1", PROGRAMS / "env_dump.py"),
        env={**threaded, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    with_fork = dumps_of(threaded)[0]

    different = {"PYTHONPATH", "PHALANX_TEST_MARK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    different.add("TORCHELASTIC_ERROR_FILE")
    for dump in (with_exec, with_fork):
        dump["env"] = {k: v for k, v in dump["env"].items() if k not in different}
    for key in ("env", "umask", "rlimits", "affinity", "orig_argv", "cwd"):
        assert with_exec[key] == with_fork[key], key


def test_nothing_is_left_of_an_agent_that_is_killed(threaded: dict[str, str]) -> None:
    with waiting_run(threaded) as run:
        wait_for_dumps(run, dump_dir(threaded), 2)

        run.signal(signal.SIGKILL)

        run.nothing_left()


def test_a_fork_server_that_is_killed_is_named_and_nothing_is_left(
    threaded: dict[str, str],
) -> None:
    with waiting_run(threaded) as run:
        wait_for_dumps(run, dump_dir(threaded), 2)
        server = run.fork_server

        os.kill(server, signal.SIGKILL)

        assert run.wait() == 70
        assert f"the fork server (pid {server}) was killed by SIGKILL" in run.stderr
        run.nothing_left()


def test_a_stop_request_is_forwarded(threaded: dict[str, str]) -> None:
    with waiting_run(threaded) as run:
        wait_for_dumps(run, dump_dir(threaded), 2)

        run.signal(signal.SIGTERM)

        assert run.wait() == 120
        run.nothing_left()


def ignore_and_block() -> None:
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)


def test_workers_get_the_dispositions_and_the_mask_phalanx_was_started_with(
    threaded: dict[str, str],
) -> None:
    """Though the agent has handlers for some of them when it execs the fork server."""
    by_hand = signals_of(by_hand_run, threaded)
    under_phalanx = signals_of(phalanx_run, threaded)

    assert under_phalanx == by_hand
    assert int(by_hand["SigIgn"], 16) & 1 << signal.SIGINT - 1
    assert int(by_hand["SigBlk"], 16) & 1 << signal.SIGTERM - 1


def by_hand_run(environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-u", PROGRAMS / "env_dump.py"],
        env={**os.environ, **environment, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"},
        preexec_fn=ignore_and_block,
        check=True,
    )


def phalanx_run(environment: dict[str, str]) -> None:
    run = finished(PROGRAMS / "env_dump.py", env=environment, preexec_fn=ignore_and_block)
    assert run.process.returncode == 0, run.stderr


def signals_of(
    start: Callable[[dict[str, str]], None], environment: dict[str, str]
) -> dict[str, str]:
    start(environment)
    (path,) = dump_dir(environment).iterdir()
    signals: dict[str, str] = dumps_of(environment)[0]["signals"]
    path.unlink()
    return signals
