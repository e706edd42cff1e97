"""PURE: from an order of nodes to the ranks of their workers.

Ranks are contiguous on a node; nodes may differ in size. Role ranks count within a role in rank
order. The ranks of a round are exactly 0 .. world size - 1, each once: `number` checks it.
"""

from __future__ import annotations

from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NodeRanks", "NodeSize", "number"]


class NodeSize(Record):
    """What one node brings: `local_world_size` workers of a role."""

    local_world_size: int
    role: str


class NodeRanks(Record):
    """The ranks of one node's workers: base + local rank."""

    group_rank: int
    rank_base: int
    world_size: int
    role_rank_base: int
    role_world_size: int


def number(nodes: Sequence[NodeSize]) -> list[NodeRanks]:
    """Ranks for nodes in their order; group rank is the position."""
    world_size = sum(node.local_world_size for node in nodes)
    role_world_size: dict[str, int] = {}
    for node in nodes:
        role_world_size[node.role] = role_world_size.get(node.role, 0) + node.local_world_size
    result = []
    rank_base = 0
    role_base = dict.fromkeys(role_world_size, 0)
    for group_rank, node in enumerate(nodes):
        ranks = NodeRanks(
            group_rank, rank_base, world_size, role_base[node.role], role_world_size[node.role]
        )
        result.append(ranks)
        rank_base += node.local_world_size
        role_base[node.role] += node.local_world_size
    assert rank_base == world_size
    return result
