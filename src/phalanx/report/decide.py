"""PURE: what was observed of a round → which failure was the first, and what the others are.

The *first failure* is the earliest end that nobody asked for. Three things can make another one
look earlier than it was: ends within a few milliseconds are seen in any order; a worker that dies
slowly (a core dump, Python's clean-up) is outrun by peers that notice its closed connections; and
those peers fail by themselves, with an exception of their own. So, of ends close together, one that
explains itself goes before an abort; and an end that only tells of a lost peer is a *victim* of one
that tells of something else, however late that came before the stop signal: a worker may leave its
group, and fail with what it had to clear up.

What ends after the stop signal is a victim too, whatever it ended with; but what then dies of the
very thing that the first failure died of, a bug that all ranks have, is counted with that. And if
nobody else is to blame for a lost peer, one that was dying when the stop signal came is.
"""

from __future__ import annotations

import re

from phalanx.outcome import Explained
from phalanx.record import Record, replace
from phalanx.report.causes import BY_WORD
from phalanx.report.diagnose import Diagnosis, diagnose, told_exception
from phalanx.report.evidence import Observed

__all__ = ["Group", "Verdict", "decide", "explained"]

#: Ends this close together have no order.
_TOGETHER_S = 0.010
#: A worker that was sent the stop signal so soon after a peer's end may have died before that one.
_PEERS_S = 1.0
#: Ends of the stop signal, or of the SIGKILL after it; the rest may be an end of its own.
_OWN_SIGNALS = frozenset({"crash", "abort", "oom", "shm-full"})
_NOT_OWN = frozenset({"KeyboardInterrupt", "SystemExit", "SignalException"})


class Group(Record):
    """Workers that died alike."""

    #: The first of them to be seen.
    diagnosis: Diagnosis
    #: Ranks in the world, in order; -1 for one that is not known.
    ranks: tuple[int, ...]
    #: They died of what the first failure died of.
    like_first: bool = False


class Verdict(Record):
    """What is to be said of a round that went wrong."""

    observed: Observed
    #: The cause; None: nothing ended by itself (the node failed, or something is stuck).
    first: Diagnosis | None = None
    #: What failed by itself besides, grouped by equal cause: those like the first come first.
    others: tuple[Group, ...] = ()
    #: Stopped by us, or pulled down by a lost peer.
    victims: tuple[Group, ...] = ()
    #: All that failed by themselves, one by one.
    failed: tuple[Diagnosis, ...] = ()


def decide(observed: Observed) -> Verdict:
    """The verdict on one round. Never raises for what workers leave behind."""
    all_ends = [diagnose(observed, end) for end in observed.ends]
    first = _first(all_ends)
    if first is None:
        victims = [_as_victim(each) for each in all_ends]
        return Verdict(observed, victims=_grouped(victims))
    if first.blames_peer:  # and nobody else is to blame
        all_ends = [_as_peer(each) for each in all_ends]
        first = _as_peer(first)
    own, victims = [], []
    for each in all_ends:
        if each.end is first.end:
            continue
        if _like(each, first) or (each.end.stopped_by is None and not _outshone(each, first)):
            own.append(each)
        else:
            victims.append(_as_victim(each))
    others = _grouped(own)
    key = _key(first)
    marked = [replace(each, like_first=_key(each.diagnosis) == key) for each in others]
    return Verdict(
        observed,
        first,
        tuple(sorted(marked, key=lambda group: not group.like_first)),
        _grouped(victims),
        (first, *own),
    )


def explained(verdict: Verdict) -> tuple[Explained, ...]:
    """For the coordinator: of what failed by itself, why, and whether another try may heal it."""
    return tuple(
        Explained(each.end.failure.local_rank, each.cause, each.can_heal)
        for each in verdict.failed
        if each.end.failure.local_rank is not None
    )


def _first(all_ends: list[Diagnosis]) -> Diagnosis | None:
    own = [each for each in all_ends if each.end.stopped_by is None]
    if not own:
        return None
    at_s = min(each.end.after_s for each in own)
    together = [each for each in own if each.end.after_s <= at_s + _TOGETHER_S]
    first = min(together, key=_order)  # the first of equals, in the order in which they were seen
    if not first.blames_peer:
        return first
    near = [each for each in own if not each.blames_peer]
    if not near:
        # It died slowly, and has got our stop signal on its way down.
        late = [each for each in all_ends if each.end.stopped_by is not None]
        near = [found for found in map(_own_end, late) if found is not None]
        near = [each for each in near if each.end.after_s <= at_s + _PEERS_S]
    return min(near, key=lambda each: each.end.after_s) if near else first


def _order(each: Diagnosis) -> tuple[bool, bool, bool]:
    """Of ends that were seen together: one that explains itself before one that does not."""
    return each.blames_peer, each.cause == "abort", not each.is_exception


def _own_end(each: Diagnosis) -> Diagnosis | None:
    """What it died of, or was dying of, when the stop signal came; None: of nothing but that."""
    if each.end.killed_at_timeout:
        return None
    if each.cause in _OWN_SIGNALS:
        return None if each.blames_peer else each
    told = each if each.is_exception else told_exception(each.end)
    if told is None or told.blames_peer:
        return None
    kind = told.headline.partition(":")[0].rpartition(".")[2]
    return None if kind in _NOT_OWN else told


def _outshone(each: Diagnosis, first: Diagnosis) -> bool:
    """It tells of a lost peer, and the first failure of something else."""
    return each.blames_peer and not first.blames_peer


def _like(each: Diagnosis, first: Diagnosis) -> bool:
    """It died of an exception of its own that is the first failure's."""
    if each.end.stopped_by is not None and not (each.is_exception and first.is_exception):
        return False
    return _key(each) == _key(first)


def _as_victim(each: Diagnosis) -> Diagnosis:
    if each.end.killed_at_timeout:
        return each
    if each.end.stopped_by is not None:
        return _of_cause(each, "stopped")
    return _of_cause(each, "lost-peer") if each.blames_peer else each


def _as_peer(each: Diagnosis) -> Diagnosis:
    """One that blames a peer, in a round in which there is nobody else to blame."""
    is_so = each.blames_peer and each.is_exception and each.end.stopped_by is None
    return _of_cause(each, "lost-peer") if is_so else each


def _of_cause(each: Diagnosis, word: str) -> Diagnosis:
    cause = BY_WORD[word]
    return replace(each, cause=word, can_heal=cause.can_heal, hint=cause.hint)


def _grouped(found: list[Diagnosis]) -> tuple[Group, ...]:
    groups: dict[tuple[str, ...], list[Diagnosis]] = {}
    for each in found:
        groups.setdefault(_key(each), []).append(each)
    return tuple(Group(each[0], _ranks(each)) for each in groups.values())


def _ranks(found: list[Diagnosis]) -> tuple[int, ...]:
    ranks = (each.end.failure.rank for each in found)
    return tuple(sorted(-1 if rank is None else rank for rank in ranks))


def _key(each: Diagnosis) -> tuple[str, ...]:
    """Equal for ends with the same cause: what only says which worker it was is left out."""
    if each.cause in ("stopped", "timeout"):
        return (each.cause,)
    failure = each.end.failure
    mine = {str(number) for number in (failure.rank, failure.local_rank, failure.pid)}

    def blank(found: re.Match[str]) -> str:
        return "#" if found[0] in mine or found[0].startswith("0x") else found[0]

    if each.cause == "lost-peer":  # told with addresses that differ, and means the same
        return (each.cause,)
    if not each.is_exception:  # our own words, in which a number is no rank
        return each.cause, each.headline
    return each.cause, re.sub(r"0x[0-9a-f]+|\d+", blank, each.headline)
