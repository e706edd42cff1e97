"""PURE: the ways to die that are told apart, each with its word and what can be done about it.

The words are an interface: they stand in `failure.json`, and on several nodes they are compared.
"""

from __future__ import annotations

import errno
import re

from phalanx.record import Record
from phalanx.report.words import LIMITS

__all__ = ["BY_WORD", "CAUSES", "Cause", "hint_for_text"]


class Cause(Record):
    """One way to die."""

    #: What `failure.json` says.
    word: str
    #: For the docs: when it is said.
    meaning: str
    #: What to do about it; empty: that depends.
    hint: str = ""
    #: Another try may go better.
    can_heal: bool = True


_SHM = "make /dev/shm larger (docker: --shm-size=8g), or use fewer data-loader processes"
_LESS_MEMORY = "smaller batches or fewer processes per node need less memory"

CAUSES: tuple[Cause, ...] = (
    Cause("exception", "a Python exception that nobody caught"),
    Cause(
        "syntax-error",
        "the script, or a module it imports at its beginning, is no valid Python",
        can_heal=False,
    ),
    Cause(
        "import-error",
        "a module that the script imports at its beginning is not there, or cannot be loaded",
        "is it installed for the Python that runs the workers? `phalanx --dry-run` shows which",
        can_heal=False,
    ),
    Cause(
        "usage",
        "the script does not understand its own arguments",
        "what stands behind the script's name is handed to the script as it is",
        can_heal=False,
    ),
    Cause("memory", "Python got no more memory (MemoryError)", _LESS_MEMORY),
    Cause(
        "device-memory",
        "a device is out of memory",
        "smaller batches need less; is another process on the same device?",
    ),
    Cause("exit-code", "an exit code other than 0, without an exception"),
    Cause("oom", "killed by the kernel, for want of memory", _LESS_MEMORY),
    Cause(
        "killed",
        "SIGKILL that neither phalanx nor a want of memory explains",
        "look for who kills: a scheduler, a time limit, a person; the kernel's log (dmesg)",
    ),
    Cause("shm-full", "SIGBUS while /dev/shm is full", _SHM),
    Cause(
        "crash",
        "a memory error or an invalid instruction in native code",
        "with PYTHONFAULTHANDLER=1 in the environment Python says where it was",
    ),
    Cause(
        "abort",
        "the process gave itself up: a failed assertion, a broken heap, a C++ exception",
        "with PYTHONFAULTHANDLER=1 in the environment Python says where it was",
    ),
    Cause("interrupt", "SIGINT that phalanx did not send (KeyboardInterrupt)"),
    Cause("signal", "any other signal that phalanx did not send"),
    Cause(
        "cannot-start",
        "the program could not be started",
        can_heal=False,
    ),
    Cause("limit", "the system refused a process, memory or a file descriptor"),
    Cause(
        "lost-peer",
        "the connection to another worker broke, and none here failed otherwise",
        "its peer ended first, or the network broke: look at the other ranks and nodes",
    ),
    Cause("stopped", "stopped by phalanx because another worker had failed"),
    Cause(
        "timeout",
        "killed by phalanx because it did not stop within the shutdown timeout",
        "--shutdown-timeout gives it longer",
    ),
)

BY_WORD = {cause.word: cause for cause in CAUSES}

#: What is done about an exception, by its text. The first that is found counts.
_BY_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"killed by signal: Bus error|insufficient shared memory|No space .*/dev/shm"),
        _SHM,
    ),
    (re.compile(r"DataLoader worker .*killed by signal: Killed"), _LESS_MEMORY),
    (
        re.compile(r"Address already in use|EADDRINUSE"),
        "a port is taken; without --master-port a free one is chosen",
    ),
    (re.compile(r"No space left on device"), "a disk is full: `df -h`"),
    (re.compile(r"Too many open files"), LIMITS[errno.EMFILE]),
    (re.compile(r"can't start new thread|Resource temporarily unavailable"), LIMITS[errno.EAGAIN]),
    (re.compile(r"Cannot allocate memory"), LIMITS[errno.ENOMEM]),
)


def hint_for_text(text: str) -> str:
    """What to do about an exception with this message; empty: nothing is known."""
    return next((hint for pattern, hint in _BY_TEXT if pattern.search(text)), "")
