"""Every way to die, with phalanx: the first lines name rank and cause, failure.json agrees.

The table is in `ways.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, Run, eventually, finished
from ways import WAYS, WAYS_DIR, Way

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
#: A job that was told to die does so within this, on a loaded machine.
SOON_S = 60.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A control group of its own, of version 1 or 2, whose memory can be limited."""
    parent = V1 if (V1 / "memory.limit_in_bytes").exists() else V2
    folder = parent / f"phalanx_test_{os.getpid()}_{tmp_path.name[:20]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not any((folder / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
        folder.rmdir()
        pytest.skip("no control group here can limit memory")
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text(), what="the group is empty")
    folder.rmdir()


def limited(group: Path, octets: int) -> tuple[str, ...]:
    """What runs a command with so much memory."""
    if (group / "memory.max").exists():
        (group / "memory.max").write_text(str(octets))
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
    else:
        (group / "memory.limit_in_bytes").write_text(str(octets))
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


def all_there(run: Run, way: Way) -> dict[int, int]:
    """Pid of each rank, once all have said that they are there."""

    def look() -> dict[int, int]:
        found = {int(r): int(p) for p, r in re.findall(r"pid (\d+) rank (\d+)", run.stdout)}
        return found if len(found) == way.workers else {}

    return eventually(look, what="all ranks to say that they are there")


def report_of(run: Run) -> list[str]:
    """The report: from our first line that is an error to the end."""
    lines = run.stderr.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("phalanx: error: ")]
    assert len(starts) == 1, run.stderr
    return lines[starts[0] :]


def first_failure(folder: Path) -> dict[str, Any]:
    paths = [*(folder / "logs").rglob("failure.json")]
    assert len(paths) == 1
    data = json.loads(paths[0].read_text())
    assert data["version"] == 1
    found: dict[str, Any] = data["first_failure"]
    return found


def run_way(way: Way, folder: Path, prefix: tuple[str, ...] = ()) -> Run:
    if way.prepare is not None:
        way.prepare(folder)
    words = [word.format(ways=WAYS_DIR, dir=folder) for word in way.words]
    options = (f"--nproc-per-node={way.workers}", f"--log-dir={folder}/logs", *way.options)
    launcher = (*prefix, *way.prefix, *PHALANX)
    with Run(*options, *words, launcher=launcher, cwd=folder) as run:
        if way.kill is not None:
            signum, rank = way.kill
            os.kill(all_there(run, way)[rank], signum)
        run.wait(SOON_S)
        run.nothing_left()
    return run


def marked(way: Way) -> Any:
    marks = [pytest.mark.root] * way.needs_root + [pytest.mark.torch] * way.needs_torch
    return pytest.param(way, id=way.name, marks=marks)


@pytest.mark.parametrize("way", [marked(way) for way in WAYS])
def test_a_way_to_die_is_told(way: Way, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prefix: tuple[str, ...] = ()
    if way.memory_limit is not None:
        prefix = limited(request.getfixturevalue("group"), way.memory_limit)
    run = run_way(way, tmp_path, prefix)
    report = report_of(run)

    assert run.process.returncode == way.code, run.stderr
    assert re.fullmatch(f"phalanx: error: {way.title}", report[0]), run.stderr
    for pattern in way.says:
        assert any(re.fullmatch(pattern, line) for line in report), (pattern, run.stderr)
    for pattern in way.hides:
        assert not re.search(pattern, "\n".join(report)), run.stderr
    assert all(line.isprintable() for line in report)
    if way.json is not None:
        if way.json["cause"] != "cannot-start":  # that is told as any other mistake
            assert report[1] == "Root Cause (first observed failure):"
        found = first_failure(tmp_path)
        assert {name: found[name] for name in way.json} == way.json


@pytest.mark.timeout(120)
def test_of_64_workers_40_die_of_one_exception_which_is_told_once(tmp_path: Path) -> None:
    program = WAYS_DIR / "forty_of_64.py"
    words = ("--nproc-per-node=64", f"--log-dir={tmp_path}/logs", program, tmp_path)
    run = finished(*words, timeout=100)
    report = report_of(run)

    assert run.process.returncode == 1
    assert re.fullmatch(
        r"phalanx: error: rank \d+ failed: ValueError: the data has another shape", report[0]
    )
    ranks = ", ".join(f"{first}-{first + 4}" for first in range(0, 64, 8))
    assert f"40 ranks failed alike: {ranks}" in report
    others = ", ".join(f"{first}-{first + 2}" for first in range(5, 64, 8))
    assert f"stopped because of it: ranks {others}" in report
    assert sum("ValueError" in line for line in report) == 3, "title, statement, exception"
    found = json.loads((tmp_path / "logs" / "latest" / "failure.json").read_text())
    assert sum(len(group["ranks"]) for group in found["others"]) == 39
    assert [len(group["ranks"]) for group in found["victims"]] == [24]
