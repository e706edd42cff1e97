"""What workers have left behind and the fork server has adopted: which there are, and whose.

This looks at the processes; whose one is, given what it shows, is decided in `workers.orphans`.
"""

from __future__ import annotations

import os

from phalanx.workers.orphans import owners_of
from phalanx.workers.process import children, session_of, variables_of
from phalanx.workers.stop import Orphan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Adopted"]


class Adopted:
    """The orphans of one round at a time."""

    def __init__(self) -> None:
        self._round = -1
        self._local_ranks: dict[str, int] = {}  #: by RANK, of the round's workers
        self._owners: dict[int, int | None] = {}  #: orphan pid -> local rank, None unknown

    def begin(self, round_: int, local_ranks: dict[str, int]) -> None:
        """A round starts, with these local ranks by RANK: there are no orphans of it yet."""
        self._round = round_
        self._local_ranks = local_ranks
        self._owners.clear()

    def reaped(self, pid: int) -> tuple[int, ...]:
        """This child is gone. Whose orphan it was; empty if nobody knows, or it was none."""
        owner = self._owners.pop(pid, None)
        return () if owner is None else (owner,)

    def look(
        self, workers: Mapping[int, int], spare: Collection[int], died: Collection[int]
    ) -> tuple[Orphan, ...]:
        """All there are now.

        `workers`: local ranks of the living workers, by pid. `spare`: our children that are no
        orphans. `died`: local ranks of the workers, or of the owners of the orphans, that were
        reaped since the last look.
        """
        claims = {
            pid: self._owners[pid] if pid in self._owners else self._claim(pid, workers)
            for pid in children(os.getpid())
            if pid not in spare
        }
        self._owners = owners_of(claims, self._owners, set(workers.values()), died)
        return tuple(Orphan(pid, owner) for pid, owner in self._owners.items())

    def _claim(self, pid: int, workers: Mapping[int, int]) -> int | None:
        """Whose an orphan is by its session, else by the RANK it was started with."""
        by_session = workers.get(session_of(pid) or 0)
        if by_session is not None:
            return by_session
        rank, round_ = variables_of(pid, "RANK", "PHALANX_ROUND")
        return self._local_ranks.get(rank or "") if round_ == str(self._round) else None
