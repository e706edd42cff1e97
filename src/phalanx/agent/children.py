"""The agent's own children: the fork server, and what comes to the agent because it adopts orphans.

While there is a fork server the agent only reaps. Once that is lost nothing of the job may live:
all children are killed, and those that arrive when their parents die, until nothing is left or the
time is up. Children that were there before any of ours, as PID 1 may have, are never killed.
"""

from __future__ import annotations

import os

from phalanx.workers.process import (
    adopt_orphans,
    children,
    exit_status,
    kernel_wait_channel,
    kill_children,
    reap,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.agent.server_process import ServerProcess

__all__ = ["Children"]

#: How long killed processes may take to go, once the fork server is lost.
CLEAR_TIMEOUT_S = 10.0


class Children:
    """One for the life of an agent. From now on it adopts orphans."""

    def __init__(self, server: ServerProcess) -> None:
        adopt_orphans()
        self._server = server
        #: Not of this job, and not to be touched.
        self._foreign = set(children(os.getpid())) - {server.pid}
        #: Until when they are being cleared, of CLOCK_BOOTTIME: None before that, infinity after.
        self.clear_by: float | None = None

    @property
    def are_being_cleared(self) -> bool:
        return self.clear_by not in (None, float("inf"))

    def reap(self) -> bool:
        """Reap all that is dead. Whether they were to be cleared, and none is left."""
        for dead in reap():
            self._foreign.discard(dead.si_pid)
            if dead.si_pid == self._server.pid:
                self._server.status = exit_status(dead)
        if self.clear_by is None:
            return False
        kill_children(self._foreign)
        return self.are_being_cleared and not self._left()  # told once

    def clear(self, now: float) -> bool:
        """Begin to kill, without the fork server. Whether none is left already."""
        self.clear_by = now + CLEAR_TIMEOUT_S
        kill_children(self._foreign)
        return self.reap()

    def give_up(self) -> tuple[tuple[int, str], ...]:
        """End the clearing. What SIGKILL has not ended: pids, and where in the kernel they wait."""
        self.clear_by = float("inf")
        return tuple((pid, kernel_wait_channel(pid)) for pid in self._left())

    def _left(self) -> list[int]:
        return [pid for pid in children(os.getpid()) if pid not in self._foreign]
