"""Trees of /sys, /proc and /dev as whole machines have them, written below a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from phalanx.devices.cpulist import format_cpu_list

FAKE_PYNVML = Path(__file__).parent / "fake_pynvml"
KFD = "sys/class/kfd/kfd/topology/nodes"


def write(root: Path, path: str, text: object) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


# CPUs


def cpu_tree(
    root: Path,
    nodes: Sequence[Iterable[int]],
    sockets: Sequence[Iterable[int]],
    cores: Sequence[Iterable[int]],
    caches: Sequence[Iterable[int]],
    siblings: str = "thread_siblings_list",
) -> None:
    """CPUs by NUMA node, socket, core and last-level cache."""
    for number, cpus in enumerate(nodes):
        write(root, f"sys/devices/system/node/node{number}/cpulist", format_cpu_list(cpus))
    write(root, "sys/devices/system/node/possible", f"0-{len(nodes) - 1}")
    for number, cpus in enumerate(sockets):
        for cpu in cpus:
            write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", number)
    for core in map(list, cores):
        for cpu in core:
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            write(root, f"{folder}/topology/{siblings}", format_cpu_list(core))
            for index, kind, level in ((0, "Data", 1), (1, "Instruction", 1), (2, "Unified", 2)):
                cache_tree(root, cpu, index, kind, level, core)
    for cache in map(list, caches):
        for cpu in cache:
            cache_tree(root, cpu, 3, "Unified", 3, cache)


def cache_tree(
    root: Path, cpu: int, index: int, kind: str, level: int, shared: Iterable[int]
) -> None:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    write(root, f"{folder}/type", kind)
    write(root, f"{folder}/level", level)
    write(root, f"{folder}/shared_cpu_list", format_cpu_list(shared))


def pci_device(root: Path, address: str, node: object | None) -> None:
    """A device on the bus; node None: a kernel that has no `numa_node` file."""
    write(root, f"sys/bus/pci/devices/{address}/vendor", "0x10de")
    if node is not None:
        write(root, f"sys/bus/pci/devices/{address}/numa_node", node)


def epyc(root: Path) -> list[int]:
    """Two sockets, a node each, 16 cores with two threads, four to a last-level cache; 8 GPUs.

    CPUs 0-15 and 32-47 are node 0. Returns the buses of the GPUs; the first four are at node 1, as
    on machines where the order of the bus is not that of the sockets.
    """
    cores = [[core, core + 32] for core in range(32)]
    node = [[*range(0, 16), *range(32, 48)], [*range(16, 32), *range(48, 64)]]
    caches = [[*range(core, core + 4), *range(core + 32, core + 36)] for core in range(0, 32, 4)]
    cpu_tree(root, node, node, cores, caches)
    buses = [0x07, 0x0B, 0x48, 0x4C, 0x88, 0x8B, 0xC8, 0xCB]
    for place, bus in enumerate(buses):
        pci_device(root, f"0000:{bus:02x}:00.0", 1 if place < 4 else 0)
    return buses


def xeon(root: Path) -> list[int]:
    """Two sockets of eight cores with two threads, numbered in turns: even ones in socket 0."""
    cores = [[core, core + 16] for core in range(16)]
    sockets = [[cpu for cpu in range(32) if cpu % 2 == socket] for socket in (0, 1)]
    cpu_tree(root, sockets, sockets, cores, sockets, siblings="core_cpus_list")
    buses = [0x1A, 0x3B, 0xAF]
    for bus, node in zip(buses, (0, 0, 1), strict=True):
        pci_device(root, f"0000:{bus:02x}:00.0", node)
    return buses


def clustered(root: Path) -> list[int]:
    """Two sockets of two nodes of four cores each (sub-NUMA clustering), one thread to a core."""
    nodes = [range(first, first + 4) for first in range(0, 16, 4)]
    sockets = [range(0, 8), range(8, 16)]
    cpu_tree(root, nodes, sockets, [[cpu] for cpu in range(16)], sockets)
    buses = [0x10, 0x20, 0x30, 0x40]
    for node, bus in enumerate(buses):
        pci_device(root, f"0000:{bus:02x}:00.0", node)
    return buses


# GPUs


def nvml(
    root: Path, gpus: Sequence[dict[str, Any]] = (), fails: str | None = None, **more: Any
) -> dict[str, str]:
    """Variables with which a child finds a `pynvml` that knows these GPUs."""
    file = root / "nvml.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"gpus": list(gpus), "fails": fails, **more}))
    return {"PYTHONPATH": str(FAKE_PYNVML), "FAKE_NVML": str(file)}


def nvidia_gpus(
    buses: Iterable[int], name: str = "NVIDIA H100 80GB HBM3", **more: Any
) -> list[dict[str, Any]]:
    return [
        {"uuid": f"GPU-{bus:08x}-5555-4444-3333-222222222222", "bus": bus, "name": name, **more}
        for bus in buses
    ]


def kfd_node(root: Path, number: int, **properties: int) -> None:
    shown = {"cpu_cores_count": 0, "simd_count": 0, **properties}
    text = "\n".join(f"{name} {value}" for name, value in shown.items())
    write(root, f"{KFD}/{number}/properties", text)
    write(root, f"{KFD}/{number}/gpu_id", properties.get("unique_id", 0) & 0xFFFF)


def mi300(root: Path, gpus: int = 8, device_files: bool = True) -> list[int]:
    """Two CPU nodes, and MI300X GPUs; returns the buses. Half of them are at each node."""
    for node in (0, 1):
        kfd_node(root, node, cpu_cores_count=96)
    buses = [0x05 + 0x20 * place for place in range(gpus)]
    for place, bus in enumerate(buses):
        kfd_node(
            root,
            place + 2,
            simd_count=1216,
            gfx_target_version=90402,
            vendor_id=0x1002,
            location_id=bus << 8,
            domain=0,
            drm_render_minor=128 + place,
            unique_id=0xBADC0FFEE0000000 + place,
        )
        pci_device(root, f"0000:{bus:02x}:00.0", place * 2 // gpus)
        if device_files:
            write(root, f"dev/dri/renderD{128 + place}", "")
    if device_files:
        write(root, "dev/kfd", "")
    return buses


def hide_kfd_node(root: Path, number: int) -> None:
    """As in a container that was not given this GPU: its properties cannot be read.

    The tests run as root, whom no mode of a file stops; a folder cannot be read either.
    """
    (root / KFD / str(number) / "properties").unlink()
    (root / KFD / str(number) / "properties").mkdir()


# Control groups

V1_MOUNT = "33 32 0:29 {root} {at} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
V2_MOUNT = "30 23 0:26 {root} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def own_groups(root: Path, *lines: str) -> None:
    write(root, "proc/self/cgroup", "\n".join(lines))


def mounts(root: Path, *lines: str) -> None:
    first = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
    write(root, "proc/self/mountinfo", "\n".join([first, *lines]))


def v1_quota(root: Path, folder: str, quota_us: object, period_us: object = 100000) -> None:
    write(root, f"{folder}/cpu.cfs_quota_us", quota_us)
    write(root, f"{folder}/cpu.cfs_period_us", period_us)
