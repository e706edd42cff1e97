"""Ctrl-Z, as the shell that started phalanx expects it: the job stands still, then the agent stops.

The terminal sends SIGTSTP to the agent's process group only, since the fork server and the workers
lead sessions of their own. So the agent has the fork server suspend what is below it, and then
stops itself by the signal's default action: the shell sees a stopped job, and says so. `fg`, `bg`,
`kill -CONT` and the hang-up of the terminal continue the agent, and the agent the rest.
"""

from __future__ import annotations

import select
import signal

from phalanx.workers.messages import Continue, Message, Suspend, Suspended
from phalanx.workers.process import boottime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.workers.messages import Link

__all__ = ["stand_still"]

#: The fork server needs two looks at the processes below it, and gives up after 0.5 s. One that
#: does not answer in this time does not keep the shell waiting; whether it is lost, pings tell.
ANSWER_TIMEOUT_S = 2.0


def stand_still(link: Link) -> list[Message]:
    """Stand still with all that the job runs until somebody continues us.

    Returns what the fork server has said meanwhile. Nothing else is heard in that time, so that
    no order can go out between Suspend and Continue.
    """
    link.send(Suspend())
    said, there = _until_suspended(link, boottime() + ANSWER_TIMEOUT_S)
    if there:  # else there is something to clear, which cannot wait
        _stop()
    link.send(Continue())
    return said


def _until_suspended(link: Link, until: float) -> tuple[list[Message], bool]:
    """What the fork server says up to its Suspended, and whether it is still there."""
    said: list[Message] = []
    waiting = select.poll()
    there = True
    while there and (left_s := until - boottime()) > 0:
        waiting.register(link.fileno(), select.POLLIN | (select.POLLOUT * link.wants_write))
        waiting.poll(left_s * 1000)
        link.flush()
        messages, there = link.receive()
        said += messages
        if Suspended() in messages:
            break
    return said, there


def _stop() -> None:
    """Stop by SIGTSTP's default action, and come back when continued.

    It comes back at once where nobody could continue us: the kernel discards the signal in a
    process group without a shell above it in its session, and for PID 1. However often the signal
    has come, it stops us once: while it is held back there is only one of it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
    signal.signal(signal.SIGTSTP, handler)
