"""What a program leaves behind when it dies is enough to say how it died, without phalanx."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.agent.evidence import gather, memory_counters
from phalanx.job import CommandKind
from phalanx.outcome import ExitStatus, Failure
from phalanx.report.as_json import as_json
from phalanx.report.decide import decide
from phalanx.report.evidence import Observed, WorkerEnd
from phalanx.report.text import report_lines
from ways import WAYS, WAYS_DIR, Way

ALONE = [way for way in WAYS if way.alone]


def observed(way: Way, folder: Path) -> Observed:
    """Run the program as rank 1 of 2, and see what it leaves."""
    words = [word.format(ways=WAYS_DIR, dir=folder) for word in way.words]
    if way.prepare is not None:
        way.prepare(folder)
    error_file = folder / "error.json"
    env = {**os.environ, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    env["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    before = memory_counters()
    run = subprocess.run([sys.executable, "-u", *words], env=env, capture_output=True, timeout=60)
    code = run.returncode
    status = ExitStatus(signal=-code) if code < 0 else ExitStatus(code)
    failure = Failure("n", "node1", 0, 1, 1, 4711, status)
    end = WorkerEnd(failure, 3.2, evidence=gather(str(error_file), run.stderr[-8192:], before))
    return Observed("node1", "r", 0, 0, 0, 2, 2, words[0], CommandKind.SCRIPT, ends=(end,))


@pytest.mark.parametrize("way", ALONE, ids=lambda way: way.name)
def test_what_is_told_of_a_way_to_die(way: Way, tmp_path: Path) -> None:
    seen = observed(way, tmp_path)
    verdict = decide(seen)
    lines = report_lines(verdict, None, None)
    text = "\n".join(lines)
    found = as_json(verdict, way.code)["first_failure"]

    assert re.fullmatch(f"phalanx: error: {way.title}", lines[0]), text
    for pattern in way.says:
        if not pattern.startswith("stopped because"):
            assert any(re.fullmatch(pattern, line) for line in lines), (pattern, text)
    for pattern in way.hides:
        assert not re.search(pattern, text), text
    for name, value in (way.json or {}).items():
        assert found[name] == value, (name, found)
    status = seen.ends[0].failure.status
    assert status.exit_code == way.code
    assert all(line.isprintable() for line in lines)
