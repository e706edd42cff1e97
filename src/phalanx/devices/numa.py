"""PURE: which CPUs each worker is bound to, from the topology and the nodes of the devices.

Local rank i works with the i-th device that workers see, and gets CPUs near it, of those that
phalanx itself may use:

- node: all of the device's NUMA node;
- socket: all of all nodes in the socket of that node;
- exclusive: the node's cores are dealt out among its devices in runs, in the order of their
  numbers, the lower devices getting one more where they do not come out even; threads of a core
  stay together. No CPU is given twice;
- core-complex: the CPUs that share one last-level cache of the node; devices of a node take turns,
  caches with more CPUs first, then by number.

A device that no worker uses counts as well: its share of the node is left free.
"""

from __future__ import annotations

from phalanx.devices.cpulist import format_cpu_list
from phalanx.errors import ExitCode, StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from phalanx.devices.topology import Cpu, Node, Topology

__all__ = ["MODES", "assign"]


def assign(
    mode: str, topology: Topology, device_nodes: Sequence[int], local_world_size: int
) -> tuple[tuple[int, ...], ...]:
    """CPUs of each local rank, sorted. `device_nodes`: NUMA node of each device workers see.

    Raises StartError where there are not enough devices or CPUs, and KeyError for another mode.
    """
    choose = _CHOOSE[mode]
    if len(device_nodes) < local_world_size:
        raise _error(
            mode,
            f"{local_world_size} workers, but {_count(len(device_nodes), 'device')}",
            "start one worker for each device, or leave --numa-binding out",
        )
    return tuple(
        _of_rank(mode, choose, topology, device_nodes, local_rank)
        for local_rank in range(local_world_size)
    )


def _of_rank(
    mode: str,
    choose: Callable[[Topology, Node, int, int], Iterable[Cpu]],
    topology: Topology,
    device_nodes: Sequence[int],
    local_rank: int,
) -> tuple[int, ...]:
    number = device_nodes[local_rank]
    node = topology.node(number)
    neighbours = [device for device, other in enumerate(device_nodes) if other == number]
    cpus = choose(topology, node, neighbours.index(local_rank), len(neighbours)) if node else ()
    chosen = tuple(sorted(cpu.number for cpu in cpus))
    if not chosen:
        raise _error(
            mode,
            f"local rank {local_rank}: its device is at NUMA node {number}, "
            f"which has no CPU for it ({_allowed(topology)})",
            "have phalanx use CPUs of that node as well (taskset, cpuset), "
            "or leave --numa-binding out",
        )
    return chosen


def _allowed(topology: Topology) -> str:
    cpus = [cpu.number for node in topology.nodes for cpu in node.cpus]
    return f"phalanx may use {format_cpu_list(cpus) or 'none'}"


def _node(_topology: Topology, node: Node, _place: int, _devices: int) -> Iterable[Cpu]:
    return node.cpus


def _socket(topology: Topology, node: Node, _place: int, _devices: int) -> Iterable[Cpu]:
    return [cpu for other in topology.nodes if other.sockets & node.sockets for cpu in other.cpus]


def _exclusive(_topology: Topology, node: Node, place: int, devices: int) -> Iterable[Cpu]:
    cores = _groups(node.cpus, lambda cpu: cpu.core)
    if len(cores) < devices:
        raise _error(
            "exclusive",
            f"NUMA node {node.number} has {_count(len(cores), 'core')} to use "
            f"and {_count(devices, 'device')}",
            "--numa-binding=node lets its workers share them",
        )
    each, more = divmod(len(cores), devices)
    first = place * each + min(place, more)
    last = first + each + (place < more)
    return [cpu for core in sorted(cores)[first:last] for cpu in cores[core]]


def _core_complex(_topology: Topology, node: Node, place: int, _devices: int) -> Iterable[Cpu]:
    if any(cpu.cache is None for cpu in node.cpus):
        raise _error(
            "core-complex",
            "this system does not say which CPUs share a cache",
            "--numa-binding=node needs no such knowledge",
        )
    groups = _groups(node.cpus, lambda cpu: cpu.cache or 0)
    order = sorted(groups, key=lambda cache: (-len(groups[cache]), cache))
    return groups[order[place % len(order)]] if order else ()


_CHOOSE = {
    "node": _node,
    "socket": _socket,
    "exclusive": _exclusive,
    "core-complex": _core_complex,
}
MODES = tuple(_CHOOSE)


def _groups(cpus: Iterable[Cpu], key: Callable[[Cpu], int]) -> Mapping[int, list[Cpu]]:
    found: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), []).append(cpu)
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _error(mode: str, message: str, hint: str) -> StartError:
    return StartError(f"--numa-binding={mode}: {message}", hint, exit_code=ExitCode.UNAVAILABLE)
