"""Real training under phalanx gives what it gives under torchrun; torch's features work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness import PROGRAMS, finished

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TRAIN = Path(__file__).parent.parent / "examples" / "digits" / "train.py"


def train(launcher: tuple[str, ...] | None, final: Path) -> dict[str, float]:
    words = ("--nproc-per-node=4", TRAIN, "--epochs=4", "--seed=7", f"--final-json={final}")
    options = {} if launcher is None else {"launcher": launcher}
    run = finished(*words, timeout=200, **options)
    assert run.process.returncode == 0, run.stderr
    return json.loads(final.read_text())


def test_ddp_converges_to_the_same_loss_as_under_torchrun(tmp_path: Path) -> None:
    """Same seed, 4 workers, gloo: loss and accuracy are equal to the last bit."""
    theirs = train(TORCHRUN, tmp_path / "torchrun.json")
    ours = train(None, tmp_path / "phalanx.json")

    assert ours == theirs
    assert ours["accuracy"] > 0.9


def features(tmp_path: Path, **options: tuple[str, ...]) -> list[dict[str, object]]:
    tmp_path.mkdir()
    words = ("--nproc-per-node=2", PROGRAMS / "ddp_suite.py", "--dir", tmp_path)
    run = finished(*words, timeout=200, **options)
    assert run.process.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def test_torch_distributed_gives_the_same_results_as_under_torchrun(tmp_path: Path) -> None:
    """new_group, barriers, object collectives, DDP, FSDP on CPU, torch.distributed.checkpoint."""
    theirs = features(tmp_path / "torchrun", launcher=TORCHRUN)
    ours = features(tmp_path / "phalanx")

    assert ours == theirs
    assert {str(row["feature"]) for row in ours} >= {
        "all_reduce",
        "new_group",
        "barrier",
        "monitored_barrier",
        "all_gather_object",
        "data_parallel",
        "fsdp1",
        "fsdp2",
        "checkpoint",
    }
