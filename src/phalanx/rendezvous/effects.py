"""PURE: what the coordinator wants done. Imperative; each is meant for one node's member."""

from __future__ import annotations

from enum import Enum

from phalanx.outcome import Failure, Outcome
from phalanx.record import Record

__all__ = [
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
    restart_count: int
    max_restarts: int


CoordinatorEffect = StartRound | StopRound | CloseJob | AnnounceRestart
