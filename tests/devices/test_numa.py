"""CPUs near a device: topologies read from whole trees, sets decided from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.devices.cpulist import parse_cpu_list
from phalanx.devices.numa import MODES, assign
from phalanx.devices.topology import Cpu, Node, Topology, node_of_pci_device, read_topology
from phalanx.errors import ExitCode, StartError

from . import trees

ALL = frozenset(range(4096))


def cpus(text: str) -> tuple[int, ...]:
    return tuple(sorted(parse_cpu_list(text)))


def sets(root: Path, mode: str, nodes: list[int], allowed: frozenset[int] = ALL) -> list[str]:
    from phalanx.devices.cpulist import format_cpu_list

    topology = read_topology(allowed, str(root))
    return [format_cpu_list(one) for one in assign(mode, topology, nodes, len(nodes))]


def test_the_nodes_of_an_epyc_box_with_eight_gpus(tmp_path: Path) -> None:
    trees.epyc(tmp_path)
    nodes = [1, 1, 1, 1, 0, 0, 0, 0]

    assert sets(tmp_path, "node", nodes) == ["16-31,48-63"] * 4 + ["0-15,32-47"] * 4
    assert sets(tmp_path, "socket", nodes) == sets(tmp_path, "node", nodes)
    assert sets(tmp_path, "exclusive", nodes) == [
        *("16-19,48-51", "20-23,52-55", "24-27,56-59", "28-31,60-63"),
        *("0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47"),
    ]
    assert sets(tmp_path, "core-complex", nodes) == sets(tmp_path, "exclusive", nodes)


def test_cores_that_do_not_come_out_even_go_to_the_lower_devices(tmp_path: Path) -> None:
    trees.epyc(tmp_path)

    assert sets(tmp_path, "exclusive", [0, 0, 0]) == ["0-5,32-37", "6-10,38-42", "11-15,43-47"]


def test_devices_of_two_nodes_in_turns_keep_their_order(tmp_path: Path) -> None:
    trees.epyc(tmp_path)

    assert sets(tmp_path, "exclusive", [1, 0, 1]) == ["16-23,48-55", "0-15,32-47", "24-31,56-63"]


def test_more_devices_than_caches_take_turns(tmp_path: Path) -> None:
    trees.epyc(tmp_path)
    turns = sets(tmp_path, "core-complex", [0] * 6)

    assert turns[:2] == turns[4:] == ["0-3,32-35", "4-7,36-39"]


def test_a_cache_with_more_cpus_comes_first(tmp_path: Path) -> None:
    trees.epyc(tmp_path)
    allowed = frozenset(range(1, 64)) - {4, 5}

    assert sets(tmp_path, "core-complex", [0, 0, 0, 0], allowed) == [
        *("8-11,40-43", "12-15,44-47", "1-3,32-35", "6-7,36-39"),
    ]


def test_hyper_threads_stay_together_however_they_are_numbered(tmp_path: Path) -> None:
    trees.xeon(tmp_path)

    assert sets(tmp_path, "exclusive", [0, 0, 1]) == [
        *("0,2,4,6,16,18,20,22", "8,10,12,14,24,26,28,30"),
        ",".join(map(str, range(1, 32, 2))),
    ]
    assert sets(tmp_path, "core-complex", [0, 0]) == [",".join(map(str, range(0, 32, 2)))] * 2


def test_a_socket_of_several_nodes_is_more_than_a_node(tmp_path: Path) -> None:
    trees.clustered(tmp_path)

    assert sets(tmp_path, "node", [0, 1, 2, 3]) == ["0-3", "4-7", "8-11", "12-15"]
    assert sets(tmp_path, "socket", [0, 1, 2, 3]) == ["0-7", "0-7", "8-15", "8-15"]
    assert sets(tmp_path, "core-complex", [1]) == ["4-7"], "of the cache, what is in the node"


def test_only_cpus_that_phalanx_may_use_are_given(tmp_path: Path) -> None:
    trees.epyc(tmp_path)
    allowed = frozenset({2, 3, 34, 40, 20})

    assert sets(tmp_path, "node", [0, 1], allowed) == ["2-3,34,40", "20"]
    assert sets(tmp_path, "exclusive", [0, 0], allowed) == ["2-3,34", "40"]
    assert sets(tmp_path, "core-complex", [0, 0, 0], allowed) == ["2-3,34", "40", "2-3,34"]


def test_a_socket_may_be_used_though_the_node_of_the_device_may_not(tmp_path: Path) -> None:
    trees.clustered(tmp_path)

    assert sets(tmp_path, "socket", [0], frozenset({5, 9})) == ["5"]


def test_without_numa_all_cpus_are_node_0(tmp_path: Path) -> None:
    assert sets(tmp_path, "node", [0], frozenset({1, 2})) == ["1-2"]
    assert sets(tmp_path, "socket", [0], frozenset({1, 2})) == ["1-2"]
    assert sets(tmp_path, "exclusive", [0, 0], frozenset({1, 2})) == ["1", "2"]


def test_where_the_firmware_names_no_socket_a_node_is_one(tmp_path: Path) -> None:
    trees.clustered(tmp_path)
    for cpu in range(16):
        trees.write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", -1)

    assert sets(tmp_path, "socket", [0, 3]) == ["0-3", "12-15"]


def test_the_last_cache_is_that_of_the_highest_level_wherever_it_is_listed(tmp_path: Path) -> None:
    for cpu in range(4):
        trees.cache_tree(tmp_path, cpu, 0, "Unified", 3, range(4))
        trees.cache_tree(tmp_path, cpu, 7, "Unified", 2, [cpu])
        trees.cache_tree(tmp_path, cpu, 8, "Instruction", 4, [cpu])

    assert sets(tmp_path, "core-complex", [0], frozenset(range(4))) == ["0-3"]


def test_this_machine_can_be_read() -> None:
    import os

    allowed = frozenset(os.sched_getaffinity(0))
    topology = read_topology(allowed)

    assert {cpu.number for node in topology.nodes for cpu in node.cpus} == allowed
    for mode in MODES:
        (one,) = assign(mode, topology, [topology.nodes[0].number], 1)
        assert {*one} <= allowed


# What cannot be


def refusal(mode: str, topology: Topology, nodes: list[int], workers: int) -> tuple[str, str]:
    with pytest.raises(StartError) as caught:
        assign(mode, topology, nodes, workers)
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    return str(caught.value), caught.value.hint


def test_fewer_devices_than_workers(tmp_path: Path) -> None:
    trees.epyc(tmp_path)

    assert refusal("node", read_topology(ALL, str(tmp_path)), [0], 2) == (
        "--numa-binding=node: 2 workers, but 1 device",
        "start one worker for each device, or leave --numa-binding out",
    )


@pytest.mark.parametrize("mode", ["node", "socket", "core-complex"])
def test_a_node_without_cpus_to_use(tmp_path: Path, mode: str) -> None:
    trees.epyc(tmp_path)
    topology = read_topology(frozenset({16, 17, 20}), str(tmp_path))

    message, hint = refusal(mode, topology, [1, 0], 2)

    assert message == (
        f"--numa-binding={mode}: local rank 1: its device is at NUMA node 0, which has no CPU for "
        "it (phalanx may use 16-17,20)"
    )
    assert hint.startswith("have phalanx use CPUs of that node as well")


def test_a_node_that_there_is_not(tmp_path: Path) -> None:
    trees.epyc(tmp_path)

    message, _ = refusal("exclusive", read_topology(ALL, str(tmp_path)), [5], 1)

    assert "NUMA node 5, which has no CPU" in message


def test_more_devices_than_cores(tmp_path: Path) -> None:
    trees.clustered(tmp_path)

    assert refusal("exclusive", read_topology(ALL, str(tmp_path)), [0] * 5, 1) == (
        "--numa-binding=exclusive: NUMA node 0 has 4 cores to use and 5 devices",
        "--numa-binding=node lets its workers share them",
    )


def test_a_system_that_does_not_describe_its_caches(tmp_path: Path) -> None:
    message, _ = refusal("core-complex", read_topology(frozenset({0}), str(tmp_path)), [0], 1)

    assert message.endswith("this system does not say which CPUs share a cache")


@pytest.mark.parametrize(
    ("file", "node"), [(1, 1), (-1, 0), (None, 0), ("", 0), ("what?", 0)], ids=str
)
def test_the_node_of_a_device(tmp_path: Path, file: object, node: int) -> None:
    trees.pci_device(tmp_path, "0000:1a:00.0", file)

    assert node_of_pci_device("0000:1a:00.0", str(tmp_path)) == node


@pytest.mark.parametrize("address", ["0000:1b:00.0", ""])
def test_a_device_that_sysfs_does_not_know_has_no_node(tmp_path: Path, address: str) -> None:
    trees.pci_device(tmp_path, "0000:1a:00.0", 1)

    assert node_of_pci_device(address, str(tmp_path)) is None


# Whatever the machine


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Nodes with cores of one to four threads, in caches of some cores, some CPUs not ours."""
    nodes = []
    number = 0
    for node in range(draw(st.integers(1, 3))):
        members = []
        cache = number
        for _ in range(draw(st.integers(0, 6))):
            core = number
            if draw(st.booleans()):
                cache = number
            for _ in range(draw(st.integers(1, 4))):
                if draw(st.booleans()):
                    members.append(Cpu(number, core, cache))
                number += 1
        nodes.append(Node(node, frozenset({node // 2}), tuple(members)))
    return Topology(tuple(nodes))


def devices(topology: Topology) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(topology.nodes) - 1), min_size=1, max_size=6)


@given(st.data())
def test_exclusive_sets_part_the_node_without_parting_a_core(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    nodes = data.draw(devices(topology))
    try:
        given_out = assign("exclusive", topology, nodes, len(nodes))
    except StartError:
        crowded = [
            node
            for node in topology.nodes
            if len({cpu.core for cpu in node.cpus}) < nodes.count(node.number)
        ]
        assert crowded, "it can be done, so it must be"
        return

    flat = [cpu for one in given_out for cpu in one]
    assert len(flat) == len({*flat}), "no CPU is given twice"
    for node in topology.nodes:
        if node.number in nodes:
            mine = [one for one, at in zip(given_out, nodes, strict=True) if at == node.number]
            assert {cpu for one in mine for cpu in one} == {cpu.number for cpu in node.cpus}
            sizes = [len({c.core for c in node.cpus if c.number in one}) for one in mine]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1
            for cpu in node.cpus:
                holders = {
                    i
                    for i, one in enumerate(mine)
                    for c in node.cpus
                    if c.core == cpu.core and c.number in one
                }
                assert len(holders) == 1, "threads of a core stay together"


@given(st.data())
def test_core_complex_sets_are_of_one_cache_of_the_node(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    nodes = data.draw(devices(topology))
    try:
        given_out = assign("core-complex", topology, nodes, len(nodes))
    except StartError:
        assert any(not topology.nodes[node].cpus for node in nodes)
        return

    for one, at in zip(given_out, nodes, strict=True):
        members = {cpu.number: cpu.cache for cpu in topology.nodes[at].cpus}
        (cache,) = {members[cpu] for cpu in one}
        assert {*one} == {cpu for cpu, its in members.items() if its == cache}


@given(st.data(), st.sampled_from(MODES))
def test_sets_are_sorted_not_empty_and_of_our_cpus(data: st.DataObject, mode: str) -> None:
    topology = data.draw(topologies())
    nodes = data.draw(devices(topology))
    ours = {cpu.number for node in topology.nodes for cpu in node.cpus}
    try:
        given_out = assign(mode, topology, nodes, len(nodes))
    except StartError:
        return

    for one in given_out:
        assert one
        assert {*one} <= ours
        assert list(one) == sorted({*one})
