"""Strangers at the store's port disturb nobody: not the job, not its steps, not our memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import PROGRAMS, Run, eventually

pytestmark = pytest.mark.torch

#: With nice 19: what is measured is what the rubbish costs the job, not the CPU of its sender.
RUBBISH = ("nice", "-n", "19", sys.executable, str(PROGRAMS / "rubbish.py"))
MIB = 1024 * 1024
MOST_GROWN = 5 * MIB
#: One for each kind of mistake: not a client, an old client, a client that sends rubbish later.
MOST_LINES = 3
ATTEMPTS = 3


def memory(pids: list[int]) -> int:
    """What these processes take together, in octets; what they share counts once (PSS)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def ours(run: Run) -> list[int]:
    """The agent, the fork server and the store."""
    names = {line: pid for pid, line in run.processes().items()}
    return [run.pid, names["phalanx fork server"], names["phalanx store"]]


@contextmanager
def sender(port: int, count: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Its process, not sending yet."""
    words = [*RUBBISH, str(port), str(count), str(seconds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def longest_gap(folder: Path, start_s: float, end_s: float) -> float:
    """The longest time between two steps of one rank in this stretch of time, in seconds."""
    longest_s = 0.0
    for path in folder.glob("steps_*.json"):
        steps = [step for step in json.loads(path.read_text()) if start_s <= step <= end_s]
        assert len(steps) > 2, "steps were made"
        longest_s = max(longest_s, *(after - step for step, after in itertools.pairwise(steps)))
    return longest_s


def gaps(folder: Path, count: int, seconds: float, attempts: int) -> list[tuple[float, float]]:
    """A job of two workers, and so often: a quiet time, then as long a time with rubbish.

    Their longest steps, quiet and with rubbish, by attempt. Memory, lines and the end of the job
    are asserted here, for all attempts together.
    """
    instants: list[tuple[float, float, float]] = []
    with Run("--nproc-per-node=2", PROGRAMS / "steps.py", "--dir", folder) as run:
        eventually((folder / "port").exists, timeout=60, what="ten steps")
        port = int((folder / "port").read_text())
        pids = ours(run)
        grown = 0
        for _ in range(attempts):
            with sender(port, count, seconds) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                quiet_s = time.monotonic()
                time.sleep(seconds)  # the fact is about a stretch of time
                before = memory(pids)
                start_s = time.monotonic()
                process.stdin.write("go\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"
                end_s = time.monotonic()
                grown = max(grown, memory(pids) - before)
                process.stdin.close()
                assert process.wait(20) == 0
            instants.append((quiet_s, start_s, end_s))
        lines = run.stderr.splitlines()
        (folder / "stop").touch()
        code = run.wait()

    print(f"{attempts} x {count} connections: {grown / MIB:.2f} MiB more, {len(lines)} lines")
    assert code == 0, run.stderr
    assert 0 < len(lines) <= MOST_LINES, lines
    assert all(line.startswith("phalanx: store: closed a connection from") for line in lines)
    assert grown < MOST_GROWN
    return [
        (longest_gap(folder, quiet_s, start_s), longest_gap(folder, start_s, end_s))
        for quiet_s, start_s, end_s in instants
    ]


def test_500_connections_of_rubbish_leave_the_job_and_our_memory_as_they_were(
    tmp_path: Path,
) -> None:
    gaps(tmp_path, count=500, seconds=1.0, attempts=1)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_step_is_twice_as_slow_beside_10000_connections_of_rubbish(tmp_path: Path) -> None:
    """The longest step is compared with the longest of an equally long quiet time before.

    On a machine that does other things too, a single step may be late for their sake. So there are
    three attempts, each with a quiet time of its own, and one must do; what the rubbish itself does
    to the steps, it does in all three.
    """
    found = gaps(tmp_path, count=10_000, seconds=20.0, attempts=ATTEMPTS)
    for quiet_s, loud_s in found:
        print(f"longest step: quiet {quiet_s * 1000:.0f} ms, with rubbish {loud_s * 1000:.0f} ms")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()}")

    assert any(loud_s <= 2 * quiet_s for quiet_s, loud_s in found), found
