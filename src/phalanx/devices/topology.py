"""The CPUs of this machine and how they belong together, read once from sysfs.

Nodes: /sys/devices/system/node/node*/cpulist. Sockets: topology/physical_package_id of each CPU.
Cores: topology/thread_siblings_list (core_cpus_list in newer kernels' words). Caches: the highest
level of cache/index*, with the CPUs that share it. What `numa` decides, it decides from the record
that comes out of here.
"""

from __future__ import annotations

from phalanx.devices.cpulist import parse_cpu_list
from phalanx.devices.files import entries, exists, number_in, text_of
from phalanx.devices.foreign import number
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cpu", "Node", "Topology", "node_of_pci_device", "read_topology"]

_CPUS = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"


class Cpu(Record):
    """A logical CPU that this process may run on."""

    number: int
    #: Its core, by the lowest number of the core's CPUs.
    core: int
    #: Its last-level cache, by the lowest number of the CPUs that share it; None: not described.
    cache: int | None


class Node(Record):
    """A NUMA node."""

    number: int
    #: Where its CPUs are; empty for a node that has memory only.
    sockets: frozenset[int]
    #: The CPUs of the node that this process may run on.
    cpus: tuple[Cpu, ...]


class Topology(Record):
    nodes: tuple[Node, ...]

    def node(self, number: int) -> Node | None:
        return next((node for node in self.nodes if node.number == number), None)


def read_topology(allowed: frozenset[int], root: str = "/") -> Topology:
    """`allowed`: the CPUs that this process may run on. Without NUMA all of them are node 0."""
    root = root.rstrip("/")
    nodes = [_node(root, node, cpus, allowed) for node, cpus in _cpus_of_nodes(root)]
    return Topology(tuple(nodes or [_node(root, 0, allowed, allowed)]))


def _cpus_of_nodes(root: str) -> Iterator[tuple[int, frozenset[int]]]:
    names = (name for name in entries(root + _NODES) if name.startswith("node"))
    numbered = [(number(name[4:]), name) for name in names]
    for node, name in sorted((node, name) for node, name in numbered if node is not None):
        yield node, _list_in(f"{root}{_NODES}/{name}/cpulist") or frozenset()


def _list_in(path: str) -> frozenset[int] | None:
    text = text_of(path)
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


def _node(root: str, number: int, cpus: frozenset[int], allowed: frozenset[int]) -> Node:
    sockets = frozenset(_socket(root, cpu, number) for cpu in cpus)
    return Node(number, sockets, tuple(_cpu(root, cpu) for cpu in sorted(cpus & allowed)))


def _socket(root: str, cpu: int, node: int) -> int:
    """-1 stands in that file where the firmware does not say; then a node is its own socket."""
    socket = number_in(f"{root}{_CPUS}/cpu{cpu}/topology/physical_package_id")
    return -1 - node if socket is None or socket < 0 else socket


def _cpu(root: str, number: int) -> Cpu:
    folder = f"{root}{_CPUS}/cpu{number}"
    siblings = _list_in(f"{folder}/topology/thread_siblings_list") or _list_in(
        f"{folder}/topology/core_cpus_list"
    )
    return Cpu(number, min(siblings or {number}), _cache(f"{folder}/cache"))


def _cache(folder: str) -> int | None:
    highest, shared = 0, None
    for name in entries(folder):
        if not name.startswith("index") or _is_for_instructions(f"{folder}/{name}"):
            continue
        level = number_in(f"{folder}/{name}/level") or 0
        cpus = _list_in(f"{folder}/{name}/shared_cpu_list")
        if level > highest and cpus:
            highest, shared = level, min(cpus)
    return shared


def _is_for_instructions(folder: str) -> bool:
    return (text_of(f"{folder}/type") or "").strip() == "Instruction"


def node_of_pci_device(pci: str, root: str = "/") -> int | None:
    """NUMA node of a device; None if sysfs knows no such device.

    -1, or no such file, means that the firmware does not say, mostly because there is one node
    only; it is taken for node 0, as by torchrun.
    """
    folder = f"{root.rstrip('/')}/sys/bus/pci/devices/{pci}"
    if not pci or not exists(folder):
        return None
    return max(0, number_in(f"{folder}/numa_node") or 0)
