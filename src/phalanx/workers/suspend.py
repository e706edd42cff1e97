"""Have all that is below a process stand still, and go on: for the terminal's Ctrl-Z.

By SIGSTOP, which nobody can catch or ignore. SIGTSTP, which the terminal sends, would do nothing:
workers lead sessions of their own, and the kernel discards SIGTSTP where no shell is in the session
that could continue what stops. So no process below gets a say, and none needs one.

What somebody else has stopped before is left as it is, both times.
"""

from __future__ import annotations

import select
import signal

from phalanx.workers.process import boottime, descendants, signal_descendant, states_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["continue_descendants", "suspend_descendants"]

#: States in /proc/PID/task/TID/stat of what runs no code: stopped, by a signal or by a tracer, or
#: dead. What a tracer has stopped goes on when that says so, but not past a SIGSTOP.
STILL = "TtZX"
DEAD = "ZX"
#: How long what does not stand still is waited for. It sleeps in the kernel, or waits for a CPU; a
#: stop takes effect before it runs code of its own again, so giving up on it does no harm.
GIVE_UP_S = 0.5
PAUSE_MS = 2


def suspend_descendants(root: int, spare: Container[int]) -> set[int]:
    """SIGSTOP to all below `root` but the spared, until all stand still, or are given up on.

    A process may fork, or die and leave a child elsewhere in the tree, while the tree is looked
    at. So each gets the signal as soon as it is found, before it forks again, and it takes two
    looks in a row that find the same processes, and none that runs. Each gets it once at least,
    whatever it looks like: one whose main thread has exited looks dead while others of it run.

    Returns the processes that were stopped already, and have got no signal.
    """
    until = boottime() + GIVE_UP_S
    told: set[tuple[int, int]] = set()  # with the parent: the signal goes astray if that is gone
    ours: set[int] = set()
    theirs: set[int] = set()
    before: set[tuple[int, int]] = set()
    while boottime() < until:
        found: set[tuple[int, int]] = set()
        running = 0
        for pid, parent in descendants(root):
            found.add((pid, parent))
            if pid in spare:
                continue
            states = states_of(pid)
            if pid not in ours and _is_stopped(states):
                theirs.add(pid)
                continue
            still = all(state in STILL for state in states)
            if not still or (pid, parent) not in told:
                signal_descendant(pid, parent, signal.SIGSTOP)
                told.add((pid, parent))
                ours.add(pid)
            running += not still
        if not running and found == before:
            break
        before = found
        if running:
            select.poll().poll(PAUSE_MS)
    return theirs - ours


def _is_stopped(states: list[str]) -> bool:
    """By a signal, all threads that live."""
    living = [state for state in states if state not in DEAD]
    return bool(living) and all(state == "T" for state in living)


def continue_descendants(root: int, spare: Container[int], stopped: Container[int]) -> None:
    """SIGCONT to all below `root` but the spared and what was `stopped` already: children first,
    so that no parent that has an eye on its children finds them stopped.
    """
    for pid, parent in reversed(list(descendants(root))):
        if pid not in spare and pid not in stopped:
            signal_descendant(pid, parent, signal.SIGCONT)
