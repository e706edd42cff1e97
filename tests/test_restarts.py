"""What a restart costs, what a worker sees of it, and that groups come back whole."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import PROGRAMS, Run, dumps, eventually, finished

STORE_CLIENT = PROGRAMS / "store_client.py"
TORCHRUN_LIMIT_S = 60.0
#: No pauses between failures that come fast.
AT_ONCE = "--max-restart-delay=0"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def dumped(tmp_path: Path, *options: str, fail_times: int, workers: int = 2) -> Run:
    """A run of env_dump.py that fails so many times, with all its dumps written."""
    failing = ("--fail-times", str(fail_times), "--gather", str(workers))
    words = (f"--nproc-per-node={workers}", *options, PROGRAMS / "env_dump.py", *failing)
    return finished(*words, env={"DUMP_DIR": str(tmp_path)})


def column(tmp_path: Path, name: str, rank: int = 0) -> list[str]:
    """One variable of one rank, over the rounds."""
    found = [dump["env"] for dump in dumps(tmp_path)]
    return [env[name] for env in found if env["RANK"] == str(rank)]


def rounds(folder: Path) -> list[list[dict[str, Any]]]:
    """What store_client.py wrote, by round and rank."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    numbers = sorted({entry["round"] for entry in found})
    return [sorted((e for e in found if e["round"] == n), key=lambda e: e["rank"]) for n in numbers]


# The budget and the counts


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_job_is_restarted_as_often_as_its_budget_allows(tmp_path: Path, budget: int) -> None:
    """And then ends with the first failure's exit code."""
    run = dumped(tmp_path, f"--max-restarts={budget}", AT_ONCE, fail_times=9)

    assert run.process.returncode == 3
    attempts = [str(number) for number in range(budget + 1)]
    assert column(tmp_path, "TORCHELASTIC_RESTART_COUNT") == attempts
    lines = run.stderr.splitlines()
    said = [line for line in lines if "; restart " in line]
    assert [line.rpartition("; ")[2] for line in said] == [
        f"restart {number} of {budget}" for number in range(1, budget + 1)
    ]
    assert all("rank 0 (local rank 0" in line and "exited with code 3" in line for line in said)
    after = {0: "", 1: " (after 1 restart)", 3: " (after 3 restarts)"}[budget]
    assert f"phalanx: error: rank 0 exited with code 3{after}" in lines


def test_no_restart_is_made_by_default(tmp_path: Path) -> None:
    run = dumped(tmp_path, fail_times=9)

    assert run.process.returncode == 3
    assert column(tmp_path, "TORCHELASTIC_MAX_RESTARTS") == ["0"]


def test_a_job_that_comes_good_ends_with_0(tmp_path: Path) -> None:
    run = dumped(tmp_path, "--max-restarts=3", AT_ONCE, fail_times=2)

    assert run.process.returncode == 0
    for rank in (0, 1):
        assert column(tmp_path, "TORCHELASTIC_RESTART_COUNT", rank) == ["0", "1", "2"]
        assert column(tmp_path, "PHALANX_ROUND", rank) == ["0", "1", "2"]
        assert column(tmp_path, "TORCHELASTIC_MAX_RESTARTS", rank) == ["3"] * 3


def test_all_workers_failing_at_once_cost_one_restart(tmp_path: Path) -> None:
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1 || exit 5'
    run = finished(
        *("--nproc-per-node=8", "--max-restarts=1", "--no-python", "sh", "-c", script),
        cwd=tmp_path,
    )

    assert run.process.returncode == 0, run.stderr
    assert run.stderr.count("; restart 1 of 1") == 1


def test_a_program_that_cannot_be_started_again_is_a_failure_like_another(tmp_path: Path) -> None:
    script = tmp_path / "program"
    script.write_text('#!/bin/sh\nrm "$0"\nexit 5\n')
    script.chmod(0o755)

    run = finished("--max-restarts=2", "--no-python", script)

    assert run.process.returncode == 66
    assert "exited with code 5; restart 1 of 2" in run.stderr
    assert "could not be started: No such file or directory; restart 2 of 2" in run.stderr


def test_error_files_of_each_attempt_are_kept_apart(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    dumped(tmp_path, f"--log-dir={logs}", "--max-restarts=1", fail_times=1)

    job = (logs / "latest").resolve()
    for rank in (0, 1):
        assert column(tmp_path, "TORCHELASTIC_ERROR_FILE", rank) == [
            f"{job}/attempt_{attempt}/{rank}/error.json" for attempt in (0, 1)
        ]
    made = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_dir()}
    assert made == {f"attempt_{n}{rest}" for n in (0, 1) for rest in ("", "/0", "/1")}


# The store


def test_the_store_is_fresh_and_the_port_too_in_every_round(tmp_path: Path) -> None:
    words = ("--nproc-per-node=3", "--max-restarts=4", AT_ONCE, STORE_CLIENT, "--dir", tmp_path)
    run = finished(*words, "--crashes", "4")

    assert run.process.returncode == 0, run.stderr
    seen = rounds(tmp_path)
    assert [len(entries) for entries in seen] == [3] * 5
    for number, entries in enumerate(seen):
        assert {entry["joined"] for entry in entries} == {1, 2, 3}, "keys of an older round"
        assert {entry["restart_count"] for entry in entries} == {number}
        assert len({entry["port"] for entry in entries}) == 1
    ports = [entries[0]["port"] for entries in seen]
    assert all(port != after for port, after in itertools.pairwise(ports))


def test_a_port_that_was_named_is_the_port_of_every_round(tmp_path: Path) -> None:
    port = free_port()
    words = (f"--master-port={port}", "--nproc-per-node=3", "--max-restarts=4", AT_ONCE)
    run = finished(*words, STORE_CLIENT, "--dir", tmp_path, "--crashes", "4")

    assert run.process.returncode == 0, run.stderr
    seen = rounds(tmp_path)
    assert [len(entries) for entries in seen] == [3] * 5
    for entries in seen:
        assert {entry["port"] for entry in entries} == {port}
        assert {entry["joined"] for entry in entries} == {1, 2, 3}, "keys of an older round"


def test_a_store_that_is_killed_ends_the_round_and_the_next_one_has_a_new_one(
    tmp_path: Path,
) -> None:
    words = ("--nproc-per-node=2", "--max-restarts=1", STORE_CLIENT, "--dir", tmp_path, "--hold")
    with Run(*words) as run:
        eventually(lambda: len(list(tmp_path.glob("0_*.json"))) == 2, what="round 0")
        (store,) = (pid for pid, line in run.processes().items() if line == "phalanx store")

        os.kill(store, signal.SIGKILL)

        eventually(lambda: len(list(tmp_path.glob("1_*.json"))) == 2, what="round 1")
        run.says("the store of the workers was killed by SIGKILL; restart 1 of 1")


# Groups of torch


def crashing_words(out: Path, mode: str) -> tuple[str | Path, ...]:
    crash = (PROGRAMS / "gloo_crash.py", "--out", out, "--mode", mode)
    return ("--nproc-per-node=3", "--max-restarts=1", *crash)


def crashing(tmp_path: Path, mode: str, number: int) -> str:
    """One run of gloo_crash.py; what rank 0 wrote when the group had come back."""
    out = tmp_path / f"{mode}_{number}"
    run = finished(*crashing_words(out, mode), timeout=120)

    assert run.process.returncode == 0, run.stderr
    assert run.stderr.count("; restart 1 of 1") == 1
    run.nothing_left()
    return out.read_text().strip()


def crashing_under_torchrun(tmp_path: Path, mode: str, number: int) -> str:
    """The same; "failed", or "hung" if it has not ended after a time many times its usual one."""
    out = tmp_path / f"torchrun_{mode}_{number}"
    with Run(*crashing_words(out, mode), launcher=TORCHRUN) as run:
        try:
            run.process.wait(TORCHRUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "hung"
    return out.read_text().strip() if out.exists() else "failed"


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["exception", "exit", "kill"])
def test_a_gloo_group_that_loses_a_rank_comes_back(tmp_path: Path, mode: str) -> None:
    assert [crashing(tmp_path, mode, number) for number in range(3)] == ["OK 1 3"] * 3


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["exception", "exit", "kill"])
def test_a_gloo_group_comes_back_twenty_times_of_twenty(tmp_path: Path, mode: str) -> None:
    """torchrun's own count is printed, and nothing is asked of it."""
    ours = [crashing(tmp_path, mode, number) for number in range(20)]
    theirs = [crashing_under_torchrun(tmp_path, mode, number) for number in range(10)]
    print(f"{mode}: torchrun: {dict(Counter(theirs))}")

    assert ours == ["OK 1 3"] * 20
