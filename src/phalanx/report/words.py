"""PURE: sentences about how processes and jobs ended, and the job's exit code."""

from __future__ import annotations

import errno
import os
import signal

from phalanx.errors import ExitCode
from phalanx.outcome import Outcome, OutcomeKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.outcome import ExitStatus, Failure

__all__ = [
    "LIMITS",
    "START_HINTS",
    "cannot_write",
    "describe",
    "duration",
    "exit_code",
    "final_lines",
    "grace_line",
    "not_restarted_line",
    "restart_line",
    "signal_name",
    "stopping_line",
    "timeout_line",
    "waiting_line",
    "who",
]

#: The ways in which a system says that it has no more to give, and what to do about each.
LIMITS = {
    errno.EAGAIN: "a process limit is reached: see `ulimit -u`, or pids.max of the container",
    errno.ENOMEM: "the machine or the container is out of memory",
    errno.EMFILE: "the limit of open files is reached: see `ulimit -n`",
    errno.ENFILE: "the machine's limit of open files is reached",
}

#: What to do about a program that could not be started, by errno.
START_HINTS = {
    **LIMITS,
    errno.ENOENT: "check the name; a script's first line (#!) names a program too",
    errno.EACCES: "check that it is an executable file (chmod +x)",
    errno.ENOEXEC: "it is no program of this machine, or a script without a #! line",
}


def signal_name(signum: int) -> str:
    """ "SIGKILL" for 9; "signal 40" where there is no name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def describe(status: ExitStatus) -> str:
    """How it ended, to follow a name: "exited with code 7", "was killed by SIGKILL"."""
    if status.errno is not None:
        return f"could not be started: {os.strerror(status.errno)}"
    if status.signal is not None:
        core = " and dumped core" if status.core_dumped else ""
        return f"was killed by {signal_name(status.signal)}{core}"
    return f"exited with code {status.code}"


def cannot_write(what: str, why: int) -> str:
    """A place for output does not take any; `why` is an errno."""
    return f"{what} cannot be written: {os.strerror(why)}"


def who(failure: Failure) -> str:
    """Which process, with the numbers that identify it."""
    if failure.local_rank is None:
        return failure.what
    pid = f", pid {failure.pid}" if failure.pid else ""
    return f"rank {failure.rank} (local rank {failure.local_rank}{pid})"


def stopping_line(cause: Failure) -> str:
    """Why a stop that takes its time was begun."""
    return f"{who(cause)} {describe(cause.status)}; the others are being stopped"


def waiting_line(
    local_ranks: tuple[int, ...], helpers: int, left_s: float, *, interrupted: bool
) -> str:
    """Whom a stop waits for, for how long, and what can be done about it.

    `interrupted`: Ctrl-C has been pressed once.
    """
    again = "a second Ctrl-C kills" if interrupted else "Ctrl-C twice kills"
    return (
        f"waiting up to {left_s:.0f} s more for {_processes(local_ranks, helpers)} to stop"
        f" ({again} now)"
    )


def timeout_line(local_ranks: tuple[int, ...], helpers: int) -> str:
    """Who had to be killed because the time to stop was up."""
    return f"killed at the end of the shutdown timeout: {_processes(local_ranks, helpers)}"


def _processes(local_ranks: tuple[int, ...], helpers: int) -> str:
    parts = []
    if local_ranks:
        listed = ", ".join(map(str, local_ranks))
        parts.append(f"local rank{'s' if len(local_ranks) > 1 else ''} {listed}")
    if helpers:
        parts.append(f"{helpers} helper process{'es' if helpers > 1 else ''}")
    return " and ".join(parts) or "nothing"


def restart_line(
    cause: Failure,
    restart_count: int,
    max_restarts: int,
    *,
    delay_s: float = 0.0,
    window_s: float | None = None,
    in_window: int = 0,
) -> str:
    """What failed, and which restart follows when; `in_window` of `max_restarts` if windowed."""
    count = f"restart {restart_count} of {max_restarts}"
    if window_s is not None:
        within = f"within {duration(window_s)}"
        count = f"restart {in_window} of {max_restarts} {within} ({restart_count} in all)"
    when = f" in {delay_s:g} s" if delay_s else ""
    return f"{who(cause)} {describe(cause.status)}; {count}{when}"


def not_restarted_line(outcome: Outcome) -> str:
    """Why a job ended though it had restarts left; empty if it did not."""
    if not outcome.cannot_heal:
        return ""
    why = f"this cannot heal ({outcome.cannot_heal})"
    return f"not restarted: {why}; --restart-on=always overrides"


def grace_line(cause: Failure, seconds: float) -> str:
    """What failed, and how long the other workers still have."""
    return (
        f"{who(cause)} {describe(cause.status)}; waiting {seconds:g} s"
        " (--failure-grace) before the other workers are stopped"
    )


def duration(seconds: float) -> str:
    """In the largest unit that makes it a whole number: "90 s", "10 min", "1 h"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{seconds // size:g} {unit}"
    return f"{seconds:g} s"


def final_lines(outcome: Outcome) -> Sequence[str]:
    """What to say at the end: nothing for a job that went well; a line, and perhaps a hint."""
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return ()
        case OutcomeKind.STOPPED:
            return (f"stopped on request ({signal_name(outcome.signum or 0)})",)
        case OutcomeKind.UNFIT | OutcomeKind.NODE_FAILED:
            return (f"error: {outcome.reason}",)
        case OutcomeKind.FAILED:
            return _failed(outcome.failures)


def _failed(failures: Sequence[Failure]) -> Sequence[str]:
    first = failures[0]
    line = f"error: {who(first)} {describe(first.status)}"
    hint = START_HINTS.get(first.status.errno or 0)
    return (line, f"hint: {hint}") if hint else (line,)


def exit_code(outcome: Outcome) -> int:
    """The first failure's own code, 128 + n for a signal, or one of ours (`ExitCode`)."""
    match outcome.kind:
        case OutcomeKind.SUCCEEDED:
            return ExitCode.SUCCESS
        case OutcomeKind.STOPPED:
            return ExitCode.STOPPED
        case OutcomeKind.UNFIT:
            return ExitCode.UNFIT
        case OutcomeKind.NODE_FAILED:
            return ExitCode.INTERNAL
        case OutcomeKind.FAILED:
            first = outcome.failures[0]
            if first.status.errno is not None:
                refused = first.status.errno in LIMITS
                return ExitCode.SYSTEM if refused else ExitCode.CANNOT_START
            return ExitCode.INTERNAL if first.local_rank is None else first.status.exit_code
