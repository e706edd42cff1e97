"""PURE: whose an orphan is, when all that is known is its session and who has just died."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["owners_of"]


def owners_of(
    orphans: Mapping[int, int | None],
    known: Mapping[int, int | None],
    leaders: Mapping[int, int],
    died: Collection[int],
) -> dict[int, int | None]:
    """The local rank that each orphan belongs to, by pid; None: nobody can tell.

    `orphans`: session id by pid. `known`: what was found for those seen before. `leaders`: local
    rank of each living worker, by pid, which is its session id too. `died`: local ranks of the
    workers, or of the owners of the orphans, that were reaped since the last look.

    An orphan belongs to the worker in whose session it is; else to one that has just died (its
    children move to us before its death can be seen). If several have, it is taken for one's that
    lives: told to stop too late does less harm than told while it is needed.
    """
    alive = set(leaders.values())
    just_died = min(died, key=lambda rank: (rank not in alive, rank), default=None)
    return {
        pid: known[pid] if pid in known else leaders.get(session or 0, just_died)
        for pid, session in orphans.items()
    }
