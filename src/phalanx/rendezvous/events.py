"""PURE: what the coordinator is told. All in the past tense; `node` is a node id.

Ages are seconds between the happening and the telling, on the teller's clock: clocks of different
nodes are never compared.
"""

from __future__ import annotations

from phalanx.outcome import Explained, Failure
from phalanx.record import Record

__all__ = [
    "CoordinatorEvent",
    "Explained",
    "GroupGone",
    "GroupSucceeded",
    "NodeFailed",
    "NodeJoined",
    "StopRequested",
    "StoreOffer",
    "Ticked",
    "WorkerFailed",
]


class StoreOffer(Record):
    """A key-value store that already listens, should this node get rank 0."""

    host: str
    port: int


class NodeJoined(Record):
    """A node is there, with nothing running, and can be part of a round."""

    node: str
    host: str
    local_world_size: int
    role: str
    offer: StoreOffer


class WorkerFailed(Record):
    """A worker (or the store) of this round has ended, and not well."""

    node: str
    round: int
    failure: Failure
    age_s: float


class GroupSucceeded(Record):
    """All workers of the round on this node have exited 0. Helpers may still run."""

    node: str
    round: int


class GroupGone(Record):
    """Nothing of the round is left on this node. `offer` is for the next one.

    `unfit`: processes that SIGKILL did not end, as (pid, kernel wait channel).
    """

    node: str
    round: int
    offer: StoreOffer
    unfit: tuple[tuple[int, str], ...] = ()
    explained: tuple[Explained, ...] = ()


class NodeFailed(Record):
    """This node can run nothing any more; `reason` is a sentence. Its workers are gone."""

    node: str
    reason: str


class StopRequested(Record):
    """Somebody asked the agent of this node to stop the job, by this signal."""

    node: str
    signum: int


class Ticked(Record):
    """The coordinator's deadline is there, or past; nothing else has happened."""


CoordinatorEvent = (
    NodeJoined | WorkerFailed | GroupSucceeded | GroupGone | NodeFailed | StopRequested | Ticked
)
