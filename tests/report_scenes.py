"""Rounds that went wrong, made up: what the tests of the report have in common."""

from __future__ import annotations

import json
import signal
from typing import Any

from phalanx.job import CommandKind
from phalanx.outcome import ExitStatus, Failure
from phalanx.report.evidence import Evidence, Observed, WorkerEnd

TRACEBACK = """\
Traceback (most recent call last):
  File "/data/ann/project/train.py", line 40, in <module>
    main()
  File "/data/ann/project/train.py", line 30, in main
    load(batch)
ValueError: bad batch
"""
GLOO = """\
Traceback (most recent call last):
  File "/data/ann/project/train.py", line 40, in <module>
    main()
  File "/data/ann/project/train.py", line 31, in main
    dist.all_reduce(loss)
RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711
"""


def end(
    rank: int,
    *,
    code: int | None = None,
    signum: int | None = None,
    errno: int | None = None,
    at: float = 3.2,
    stopped: bool = False,
    killed: bool = False,
    stderr: str | bytes = b"",
    error_file: bytes = b"",
    **evidence: Any,
) -> WorkerEnd:
    """One worker's end; `stopped`: after SIGTERM from us."""
    tail = stderr.encode() if isinstance(stderr, str) else stderr
    status = ExitStatus(code, signum, errno=errno)
    failure = Failure("n", "node1", 0, rank, rank, 0 if errno else 4700 + rank, status)
    return WorkerEnd(
        failure,
        at,
        stopped_by=signal.SIGTERM if stopped else None,
        killed_at_timeout=killed,
        evidence=Evidence(error_file, tail, True, **evidence),
    )


def stopped(rank: int, at: float = 3.3) -> WorkerEnd:
    """It died of our SIGTERM."""
    return end(rank, signum=signal.SIGTERM, at=at, stopped=True)


def scene(*ends: WorkerEnd, world_size: int = 4, **more: Any) -> Observed:
    fields: dict[str, Any] = {"log_dir": "/logs/job_12345678", "logs_kept": True, **more}
    return Observed(
        "node1", "run-7", fields.pop("round", 0), fields.pop("restart_count", 0), 3,
        world_size, world_size, "train.py", CommandKind.SCRIPT, ends, **fields,
    )  # fmt: skip


def error_file(message: object) -> bytes:
    return json.dumps({"message": message}).encode()


def recorded(headline: str, stack: str = TRACEBACK) -> bytes:
    """As torch's @record writes it."""
    details = {"py_callstack": stack, "timestamp": "1796126273"}
    return error_file({"message": headline, "extraInfo": details})
