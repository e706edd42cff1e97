"""PURE: what the coordinator wants done. Imperative; each is meant for one node's member."""

from __future__ import annotations

from enum import Enum

from phalanx.outcome import Failure, Outcome
from phalanx.record import Record

__all__ = [
    "AnnounceGrace",
    "AnnounceRestart",
    "Assignment",
    "CloseJob",
    "CoordinatorEffect",
    "StartRound",
    "StopReason",
    "StopRound",
]


class Assignment(Record):
    """One node's place in one round. Holds the node's own ranks only."""

    round: int
    restart_count: int
    group_rank: int
    group_world_size: int
    rank_base: int
    world_size: int
    role_rank_base: int
    role_world_size: int
    master_addr: str
    master_port: int


class StopReason(Enum):
    """Why a round is stopped; it decides the default grace."""

    FAILURE = "failure"
    SIGNAL = "signal"


class StartRound(Record):
    node: str
    assignment: Assignment


class StopRound(Record):
    """Stop the round's workers, by the stages of a stop."""

    node: str
    round: int
    reason: StopReason
    signum: int


class CloseJob(Record):
    node: str
    outcome: Outcome


class AnnounceRestart(Record):
    """For the person at the coordinator's node: what was the cause, and which restart this is."""

    cause: Failure
    #: Of the whole life of the job.
    restart_count: int
    max_restarts: int
    #: Until the next round starts; 0: at once.
    delay_s: float = 0.0
    #: The stretch of time that `max_restarts` is for, and how many this makes in it; None: a total.
    window_s: float | None = None
    in_window: int = 0


class AnnounceGrace(Record):
    """For the same person: after this failure the other workers have so long until they are told
    to stop.
    """

    cause: Failure
    seconds: float


CoordinatorEffect = StartRound | StopRound | CloseJob | AnnounceRestart | AnnounceGrace
