"""The page on what a worker finds names every variable that a worker is given."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx.job import Command, CommandKind, JobSpec, StoreAddress
from phalanx.rendezvous.effects import Assignment
from phalanx.workers.environment import worker_environment

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "workers.md"


def test_every_variable_of_a_worker_is_on_the_page_and_no_other() -> None:
    spec = JobSpec(
        command=Command(CommandKind.SCRIPT, "train.py"),
        run_id="none",
        local_world_size=2,
        store=StoreAddress("localhost", None),
        virtual_local_rank=True,
    )
    assignment = Assignment(0, 0, 0, 1, 0, 2, 0, 2, "localhost", 1234)
    given = worker_environment(spec, assignment, 0, error_file="e", inherited={})

    given_part, _, _ = PAGE.read_text().partition("## Variables that phalanx reads")
    rows = [line for line in given_part.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([A-Z][A-Z_]+)`", row.split("|")[1])}
    assert named == set(given)
