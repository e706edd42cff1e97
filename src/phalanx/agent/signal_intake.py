"""Which signals the agent takes in, and how they reach its loop.

A handler does nothing: Python writes the signal's number into a pipe, and the loop reads it there.
What a signal then does is the loop's affair, and the member's; `phalanx.signals` has it as a table.
"""

from __future__ import annotations

import os
import signal

from phalanx.workers.process import unblock_signals, wakeup_pipe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from phalanx.workers.process import StartState

__all__ = ["SignalIntake"]


class SignalIntake:
    """Signals come in from now on. One for the life of an agent."""

    def __init__(self, names: Iterable[str], start_state: StartState, *, resizes: bool) -> None:
        """`names`: of the signals that stop the job. `resizes`: a terminal of ours may."""
        self.fd = wakeup_pipe()  # before there are handlers
        self._ignored = start_state.ignored
        stop = {getattr(signal, name) for name in names}
        if signal.SIGHUP in self._ignored:
            stop.discard(signal.SIGHUP)  # nohup: its wish is kept
        #: Those that stop the job.
        self.stop: frozenset[int] = frozenset(stop)
        taken_in = stop | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGCONT}
        if signal.SIGTSTP not in self._ignored:
            taken_in.add(signal.SIGTSTP)
        if resizes:
            taken_in.add(signal.SIGWINCH)
        for signum in taken_in:
            signal.signal(signum, lambda _signum, _frame: None)
        if signal.SIGTTOU not in stop:
            # `stty tostop`: our few lines are written, as the workers' are; none stops the job.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if signal.SIGINT not in stop | self._ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would raise anywhere
        unblock_signals()

    def read(self) -> bytes:
        """The numbers of the signals that have come, in their order; `fd` is readable."""
        return os.read(self.fd, 4096)

    def for_workers(self, signum: int) -> int:
        """What workers get for a signal that stops the job.

        A shell starts `phalanx ... &` in a script with INT ignored, workers included.
        """
        return int(signal.SIGTERM) if signum in self._ignored else signum
