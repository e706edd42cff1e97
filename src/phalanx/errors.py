"""Exceptions by owner, and the exit codes they lead to.

Whose fault is it: the user's command line (`UsageError`), what the user asked to run or this
machine (`StartError`), or ours (`InternalError`). Each carries one line that says what is wrong
and one that says what to do; `cli.main` prints both and leaves with `exit_code`. A worker's own
failure is not an exception: it is the outcome of the job, and its exit code is handed on.
"""

from __future__ import annotations

from enum import IntEnum

from phalanx.record import Record

__all__ = ["EXIT_CODES", "ExitCode", "InternalError", "PhalanxError", "StartError", "UsageError"]


class ExitCode(IntEnum):
    """The exit codes that are phalanx's own. All others are the first failure's."""

    SUCCESS = 0
    USAGE = 64
    CANNOT_START = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    SYSTEM = 71
    CANNOT_CREATE = 73
    STOPPED = 120
    UNFIT = 121
    JOIN_TIMEOUT = 122
    QUORUM_LOST = 123


class ExitCodeRow(Record):
    """One row of the exit-code table in the docs."""

    code: ExitCode
    meaning: str
    what_to_do: str


#: The table that `docs/reference/exit-codes.md` is generated from.
EXIT_CODES: tuple[ExitCodeRow, ...] = (
    ExitCodeRow(ExitCode.SUCCESS, "every worker exited with 0", "nothing"),
    ExitCodeRow(
        ExitCode.USAGE,
        "the command line is wrong: an unknown option, a bad value, nothing to run",
        "read the two lines on stderr; `phalanx --help`",
    ),
    ExitCodeRow(
        ExitCode.CANNOT_START,
        "what should run cannot be started: missing, unreadable, not executable",
        "check the path or the module name that is printed",
    ),
    ExitCodeRow(
        ExitCode.UNAVAILABLE,
        "something asked for is not to be had here: a port in use, a device that is not there, "
        "a job on several nodes (not yet)",
        "read the hint",
    ),
    ExitCodeRow(
        ExitCode.INTERNAL,
        "a mistake in phalanx, or one of its own processes was killed; the workers are gone",
        "report it, with the lines printed",
    ),
    ExitCodeRow(
        ExitCode.SYSTEM,
        "the system refused a process, memory or a file descriptor",
        "raise the limit that is named (`ulimit -a`, the container's pids limit)",
    ),
    ExitCodeRow(
        ExitCode.CANNOT_CREATE,
        "the log directory or a file in it cannot be created",
        "choose a directory that can be written with --log-dir",
    ),
    ExitCodeRow(
        ExitCode.STOPPED,
        "stopped on request, by a signal to phalanx",
        "nothing: somebody wanted it",
    ),
    ExitCodeRow(
        ExitCode.UNFIT,
        "a worker could not be killed within 10 s (stuck in the kernel)",
        "look at the process that is named; the machine may need a restart",
    ),
    ExitCodeRow(
        ExitCode.JOIN_TIMEOUT,
        "reserved, for jobs on several nodes: not enough of them came in time",
        "no version returns it yet",
    ),
    ExitCodeRow(
        ExitCode.QUORUM_LOST,
        "reserved, for jobs on several nodes: too many were lost, and none came in their place",
        "no version returns it yet",
    ),
)


class PhalanxError(Exception):
    """An end that phalanx explains. `str()` is the line; `hint` the line that says what to do."""

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, hint: str = "", *, exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(PhalanxError):
    """The command line, or a `PET_*` variable, is wrong. Not raised for what a worker does."""

    exit_code = ExitCode.USAGE


class StartError(PhalanxError):
    """What should run, or what it needs of this machine, is not there. Nothing was started."""

    exit_code = ExitCode.CANNOT_START


class InternalError(PhalanxError):
    """A mistake in phalanx, or one of its own processes was lost. The workers are gone."""

    exit_code = ExitCode.INTERNAL
