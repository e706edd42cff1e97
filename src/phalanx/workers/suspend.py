"""Have all that is below a process stand still, and go on: for the terminal's Ctrl-Z.

By SIGSTOP, which nobody can catch or ignore. SIGTSTP, which the terminal sends, would do nothing:
workers lead sessions of their own, and the kernel discards SIGTSTP where no shell is in the session
that could continue what stops. So no process below gets a say, and none needs one.
"""

from __future__ import annotations

import select
import signal

from phalanx.workers.process import boottime, descendants, signal_descendant, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["continue_descendants", "suspend_descendants"]

#: States in /proc/PID/stat of what runs no code: stopped, by a signal or by a tracer, or dead.
STILL = "TtZX"
#: How long what does not stand still is waited for. It sleeps in the kernel, or waits for a CPU; a
#: stop takes effect before it runs code of its own again, so giving up on it does no harm.
GIVE_UP_S = 0.5
PAUSE_MS = 2


def suspend_descendants(root: int, spare: Container[int]) -> bool:
    """SIGSTOP to all below `root` but the spared, again and again until all stand still.

    A process may fork, or die and leave a child elsewhere in the tree, while the tree is looked
    at. So each gets the signal as soon as it is found, before it forks again, and it takes two
    looks in a row that find the same processes, and none that runs. Says whether it came to that.
    """
    until = boottime() + GIVE_UP_S
    before: set[int] = set()
    while boottime() < until:
        found: set[int] = set()
        running = 0
        for pid, parent in descendants(root):
            found.add(pid)
            if pid not in spare and state_of(pid) not in STILL:
                signal_descendant(pid, parent, signal.SIGSTOP)
                running += 1
        if not running and found == before:
            return True
        before = found
        if running:
            select.poll().poll(PAUSE_MS)
    return False


def continue_descendants(root: int, spare: Container[int]) -> None:
    """SIGCONT to all below `root` but the spared: children first, so that no parent that has an
    eye on its children finds them stopped.
    """
    for pid, parent in reversed(list(descendants(root))):
        if pid not in spare:
            signal_descendant(pid, parent, signal.SIGCONT)
