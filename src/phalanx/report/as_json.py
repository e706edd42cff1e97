"""PURE: a verdict for programs: `failure.json`, and the error file of whoever started phalanx.

Version 1. A reader takes a field it does not know for none of its business; a field that is here
keeps its meaning.
"""

from __future__ import annotations

from phalanx.report.error_file import whole
from phalanx.report.text import exit_number, title
from phalanx.report.words import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from phalanx.outcome import ExitStatus
    from phalanx.report.decide import Group, Verdict
    from phalanx.report.diagnose import Diagnosis

__all__ = ["agent_error_file", "as_json"]

VERSION = 1


def as_json(verdict: Verdict, exit_code: int) -> dict[str, Any]:
    """What `failure.json` holds. `exit_code`: phalanx's own."""
    seen = verdict.observed
    return {
        "version": VERSION,
        "kind": _kind(verdict),
        "run_id": seen.run_id,
        "host": seen.host,
        "round": seen.round,
        "restart_count": seen.restart_count,
        "max_restarts": seen.max_restarts,
        "world_size": seen.world_size,
        "exit_code": exit_code,
        "first_failure": None if verdict.first is None else _failure(verdict.first),
        "others": [_group(group) for group in verdict.others],
        "victims": [_group(group) for group in verdict.victims],
        "stuck": [{"pid": pid, "wait_channel": where} for pid, where in seen.stuck],
        "error": seen.error or None,
        "log_dir": seen.log_dir,
    }


def _kind(verdict: Verdict) -> str:
    """As the outcome of the job has it."""
    if verdict.observed.error:
        return "node failed"
    return "unfit" if verdict.observed.stuck else "failed"


def _failure(first: Diagnosis) -> dict[str, Any]:
    failure = first.end.failure
    told = "\n".join(first.details) or None
    return {
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid or None,
        "after_s": round(first.end.after_s, 3),
        "cause": first.cause,
        "message": first.headline,
        **_status(failure.status),
        "traceback": told if first.has_traceback else None,
        "last_lines": None if first.has_traceback else told,
        "hint": first.hint or None,
        "can_heal": first.can_heal,
    }


def _status(status: ExitStatus) -> dict[str, Any]:
    """`exit_code` is None for a signal, and both are for what never ran."""
    return {
        "exit_code": status.code,
        "signal": None if status.signal is None else signal_name(status.signal),
    }


def _group(group: Group) -> dict[str, Any]:
    each = group.diagnosis
    return {
        "ranks": [rank for rank in group.ranks if rank >= 0],
        "cause": each.cause,
        "message": each.headline,
        **_status(each.end.failure.status),
        "like_first": group.like_first,
    }


def agent_error_file(verdict: Verdict, timestamp: int = 0) -> dict[str, Any]:
    """What whoever set TORCHELASTIC_ERROR_FILE for phalanx finds there, in torch's format.

    As torchrun does it: the first failure's own error file, with its exit code added. If the worker
    has left none, or one that cannot be read, what is known takes its place; `timestamp`, in
    seconds of the epoch, is for that.
    """
    first = verdict.first
    number = 0 if first is None else exit_number(first.end.failure.status)
    own = None if first is None else whole(first.end.evidence.error_file)
    if own is not None and "message" in own:
        if isinstance(own["message"], dict) and number:
            return {**own, "message": {**own["message"], "errorCode": number}}
        return own
    message: dict[str, Any] = {
        "message": title(verdict) if first is None else first.headline,
        "extraInfo": {
            "py_callstack": "" if first is None else "\n".join(first.details),
            "timestamp": str(timestamp),
        },
    }
    return {"message": {**message, "errorCode": number} if number else message}
