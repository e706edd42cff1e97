"""PURE: whose an orphan is, when all that is known is what it shows and who has just died."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["owners_of"]


def owners_of(
    claims: Mapping[int, int | None],
    known: Mapping[int, int | None],
    alive: Collection[int],
    died: Collection[int],
) -> dict[int, int | None]:
    """The local rank that each orphan belongs to, by pid; None: nobody can tell.

    `claims`: what each shows, by its session or its variables; None: nothing. `known`: what was
    found for those seen before. `alive`: local ranks of the workers that live. `died`: local ranks
    of the workers, or of the owners of the orphans, that were reaped since the last look.

    One that shows nothing and is new belongs to the worker that has just died: its children move to
    us before its death can be seen. If several have, it is taken for one's that lives: told to stop
    too late does less harm than told while it is needed.
    """
    just_died = min(died, key=lambda rank: (rank not in alive, rank), default=None)
    return {
        pid: known.get(pid, just_died if claim is None else claim) for pid, claim in claims.items()
    }
