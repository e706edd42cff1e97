"""PURE: what the coordinator wants done. Imperative; each is meant for one node's member."""

from __future__ import annotations

from enum import Enum

from phalanx.record import Record
from phalanx.rendezvous.events import Failure

__all__ = [
    "AnnounceRestart",
    "Assignment",
    "CloseJob",
    "CoordinatorEffect",
    "Outcome",
    "OutcomeKind",
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


class OutcomeKind(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  #: on request
    UNFIT = "unfit"  #: a process could not be killed
    NODE_FAILED = "node failed"  #: phalanx itself lost a process it cannot do without


class Outcome(Record):
    """How the job ended. `failures` are those of the last round, the first failure first."""

    kind: OutcomeKind
    failures: tuple[Failure, ...] = ()
    #: The signal for STOPPED.
    signum: int | None = None
    #: A sentence for UNFIT and NODE_FAILED.
    reason: str = ""


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
