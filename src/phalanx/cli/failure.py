"""The end of a job, for people and for programs: the report on the screen, `failure.json`, and the
error file that whoever started phalanx has asked for.

What is said is decided in `report`; here it is put where it belongs. A job that went well comes
through here without an import.
"""

from __future__ import annotations

import os

from phalanx.outcome import OutcomeKind
from phalanx.say import printable, say, say_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.agent.log_paths import LogPaths
    from phalanx.outcome import Outcome
    from phalanx.report.decide import Verdict

__all__ = ["tell"]

#: Where a scheduler, or torch's `@record`, wants the record of what went wrong.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
#: The report for programs, in the job's directory.
_REPORT = "failure.json"


def tell(
    outcome: Outcome, verdict: Verdict | None, paths: LogPaths, environ: Mapping[str, str]
) -> int:
    """Say how the job ended, leave the files behind that are wanted; the exit code."""
    from phalanx.report.words import exit_code, final_lines, not_restarted_line

    if outcome.kind is OutcomeKind.SUCCEEDED:
        paths.clean_up()
        return exit_code(outcome)
    if outcome.cannot_heal:
        say(not_restarted_line(outcome))
    if outcome.kind is OutcomeKind.STOPPED or verdict is None:
        for text in final_lines(outcome):
            say(text)
        kept = paths.clean_up(keep_files=True)
        if kept is not None:
            say(f"logs: {printable(kept)}")
        return exit_code(outcome)
    return _failed(outcome, verdict, paths, environ)


def _failed(outcome: Outcome, verdict: Verdict, paths: LogPaths, environ: Mapping[str, str]) -> int:
    """A job in which a worker failed, or this node: the report, and the files."""
    code = _exit_code(outcome, verdict)
    kept = paths.clean_up(keep_files=True)
    logs = _log_folder(verdict, paths.job_dir if paths.chosen else kept)
    report_path = _write_report(verdict, code, paths)
    error_file = environ.get(_ERROR_FILE)
    if error_file:
        _write_error_file(verdict, error_file)
    if _is_ours(outcome):
        from phalanx.report.words import final_lines

        for text in final_lines(outcome):
            say(text)
        if logs:
            say(f"logs: {printable(logs)}")
        return code
    from phalanx.report.text import report_lines

    say_block(report_lines(verdict, *_screen(), logs=logs, report_path=report_path))
    return code


def _is_ours(outcome: Outcome) -> bool:
    """What failed is a service of phalanx, of which the verdict on the workers says nothing."""
    return outcome.kind is OutcomeKind.FAILED and outcome.failures[0].local_rank is None


def _exit_code(outcome: Outcome, verdict: Verdict) -> int:
    """That of the first failure, which may be another one than was seen first."""
    from phalanx.report.words import exit_code

    if outcome.kind is OutcomeKind.FAILED and verdict.first and not _is_ours(outcome):
        from phalanx.record import replace

        outcome = replace(outcome, failures=(verdict.first.end.failure,))
    return exit_code(outcome)


def _screen() -> tuple[int | None, int | None]:
    """Columns and rows of the terminal that stderr is; None: it is none, or does not say."""
    try:
        size = os.get_terminal_size(2)
    except OSError:
        return None, None
    return size.columns or None, size.lines or None


def _log_folder(verdict: Verdict, job_dir: str | None) -> str:
    """The folder of the worker that failed first, or the job's; "" if nothing is kept."""
    if job_dir is None:
        return ""
    seen, first = verdict.observed, verdict.first
    if first is not None:
        attempt = os.path.join(job_dir, f"attempt_{seen.restart_count}")
        for folder in (f"{attempt}_round_{seen.round}", attempt):
            own = os.path.join(folder, str(first.end.failure.local_rank))
            if os.path.isdir(own):
                return own
    return job_dir if os.path.isdir(job_dir) else ""


def _write_report(verdict: Verdict, code: int, paths: LogPaths) -> str:
    """Write `failure.json` into a directory that the user has named; its path, "" for none."""
    from phalanx.report.as_json import as_json

    if paths.job_dir is None or not paths.chosen:
        return ""  # whoever wants to read it says where; a temporary directory is not littered
    path = os.path.join(paths.job_dir, _REPORT)
    problem = _replace_file(path, _json(as_json(verdict, code), indent=2))
    if problem:
        say(f"{printable(path)} cannot be written: {problem}")
    return "" if problem else path


def _write_error_file(verdict: Verdict, path: str) -> None:
    from time import time

    from phalanx.report.as_json import agent_error_file

    text = _json(agent_error_file(verdict, int(time())))
    problem = ""
    if os.path.isfile(path) or not os.path.exists(path):
        problem = _replace_file(path, text)
    # A device stays what it is; and Kubernetes mounts a file there whose place no other can take.
    if os.path.exists(path) and (problem or not os.path.isfile(path)):
        problem = _overwrite(path, text)
    if problem:
        say(f"{_ERROR_FILE} {printable(path)} cannot be written: {problem}")


def _json(data: Mapping[str, object], indent: int | None = None) -> bytes:
    import json

    return json.dumps(data, indent=indent).encode("ascii") + b"\n"


def _replace_file(path: str, octets: bytes) -> str:
    """Put a file there at once and whole; "" or why it cannot be."""
    fresh = f"{path}.{os.getpid()}.tmp"
    try:
        with open(fresh, "xb") as file:
            file.write(octets)
        os.replace(fresh, path)
    except OSError as error:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        return error.strerror or str(error)
    return ""


def _overwrite(path: str, octets: bytes) -> str:
    """Write into what is there, waiting for no reader; "" or why it cannot be."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(fd, octets)
        finally:
            os.close(fd)
    except OSError as error:
        return error.strerror or str(error)
    return ""
