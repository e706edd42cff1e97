"""Ctrl-Z, as the shell that started phalanx expects it: the job stands still, then the agent stops.

The terminal sends SIGTSTP to the agent's process group only, since the fork server and the workers
lead sessions of their own. So the agent has the fork server suspend what is below it, and then
stops itself by the signal's default action: the shell sees a stopped job, and says so. `fg`, `bg`,
`kill -CONT` and the hang-up of the terminal continue the agent, and the agent the rest.

Between Ctrl-Z and the stop there is time in which the wish may be taken back, by SIGCONT, or
overtaken by a signal that stops the job. So SIGTSTP is raised anew at once, but held back until the
end: a SIGCONT that comes meanwhile takes it away, as the kernel has it for every program.
"""

from __future__ import annotations

import os
import select
import signal

from phalanx.workers.messages import Continue, Message, Suspend, Suspended
from phalanx.workers.process import boottime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from phalanx.workers.messages import Link

__all__ = ["stand_still"]

#: The fork server needs two looks at the processes below it, and gives up after 0.5 s. One that
#: does not answer in this time does not keep the shell waiting; whether it is lost, pings tell.
ANSWER_TIMEOUT_S = 2.0


def stand_still(
    link: Link, wakeup_fd: int, stop_signals: Container[int]
) -> tuple[list[Message], bytes]:
    """Stand still with all that the job runs until somebody continues us.

    Returns what the fork server has said meanwhile, and the signals that have come before we
    stopped. Nothing else is heard in that time, so that no order can go out between Suspend and
    Continue.
    """
    stop = _HeldBackStop(wakeup_fd, stop_signals)
    said: list[Message] = []
    if stop.is_due():
        link.send(Suspend())
        said, there = _until_suspended(link, stop, boottime() + ANSWER_TIMEOUT_S)
        stop.let_in(there)  # without it there is something to clear, which cannot wait
        link.send(Continue())
    else:
        stop.let_in(False)
    return said, stop.signums


def _until_suspended(link: Link, stop: _HeldBackStop, until: float) -> tuple[list[Message], bool]:
    """What the fork server says up to its Suspended, and whether it is still there.

    Up to now if we are not to stop any more.
    """
    said: list[Message] = []
    waiting = select.poll()
    waiting.register(stop.wakeup_fd, select.POLLIN)
    there = True
    while there and stop.is_due() and (left_s := until - boottime()) > 0:
        waiting.register(link.fileno(), select.POLLIN | (select.POLLOUT * link.wants_write))
        waiting.poll(left_s * 1000)
        link.flush()
        messages, there = link.receive()
        said += messages
        if Suspended() in messages:
            break
    return said, there


class _HeldBackStop:
    """Our stop by SIGTSTP's default action, held back until it is let in, once.

    Further SIGTSTP change nothing: while it is held back there is only one of it.
    """

    def __init__(self, wakeup_fd: int, stop_signals: Container[int]) -> None:
        self.wakeup_fd = wakeup_fd
        #: The signals that have come since the agent last looked, but SIGTSTP.
        self.signums = b""
        self._stop_signals = stop_signals
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))
        self._handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        #: A SIGCONT until now may have come before we raised SIGTSTP, which is then still there.
        words = [s for s in self._look() if s in (signal.SIGTSTP, signal.SIGCONT)]
        self._taken_back = words[-1:] == [signal.SIGCONT]

    def is_due(self) -> bool:
        """Neither SIGCONT has come after SIGTSTP nor a signal that stops the job."""
        self._look()
        return (
            not self._taken_back
            and signal.SIGTSTP in signal.sigpending()
            and not any(signum in self._stop_signals for signum in self.signums)
        )

    def let_in(self, wanted: bool) -> None:
        """Stop, if it is `wanted` and still due, and come back when continued.

        A SIGCONT in the last instant takes the stop away. It comes back at once where nobody could
        continue us, too: the kernel discards the signal in a process group without a shell above it
        in its session, and for PID 1.
        """
        if not (wanted and self.is_due()):
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # this discards what is held back
            signal.signal(signal.SIGTSTP, self._handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
        signal.signal(signal.SIGTSTP, self._handler)

    def _look(self) -> bytes:
        """Take in the signals that have come."""
        try:
            signums = os.read(self.wakeup_fd, 4096)
        except BlockingIOError:
            return b""
        self.signums += signums.replace(bytes([signal.SIGTSTP]), b"")
        return signums
