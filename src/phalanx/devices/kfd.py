"""AMD's GPUs, from what the kernel's compute driver (KFD) says of them in sysfs.

ROCm's runtime finds its GPUs in the same place, in the same order (libhsakmt/src/topology.c of
ROCm/ROCR-Runtime). A node of that topology with SIMD units is a GPU. In a container all nodes are
listed, and the properties of a GPU that the container was not given cannot be read (the kernel
checks the device control group). To be used, a GPU also needs its render node, /dev/dri/renderD*,
and /dev/kfd.

These are looked at with access(), not opened: opening a render node wakes a sleeping GPU, and waits
for one that is being reset. Written from the sources of kernel and runtime, and tested with copies
of such trees; never run on a machine with AMD's GPUs.
"""

from __future__ import annotations

import os

from phalanx.devices.files import entries, exists, text_of
from phalanx.devices.foreign import number
from phalanx.devices.records import Gpu
from phalanx.record import Record

__all__ = ["FOLDER", "KfdGpus", "read_kfd"]

FOLDER = "/sys/class/kfd/kfd/topology/nodes"


class KfdGpus(Record):
    """What KFD lists. All counts are of GPUs."""

    #: Those that a process here may use, in the runtime's order.
    usable: tuple[Gpu, ...] = ()
    #: Those whose properties are not for us: other containers' GPUs.
    hidden: int = 0
    #: Those that may be seen but not opened, and what is missing.
    closed: int = 0
    missing: str = ""

    @property
    def total(self) -> int:
        return len(self.usable) + self.hidden + self.closed


def read_kfd(root: str = "/") -> KfdGpus:
    """Read the topology. Nothing is found where the driver is not loaded."""
    root = root.rstrip("/")
    usable: list[Gpu] = []
    hidden = closed = 0
    missing = ""
    for name in _nodes(root + FOLDER):
        text = text_of(f"{root}{FOLDER}/{name}/properties")
        if text is None:
            hidden += 1
            continue
        properties = _properties(text)
        if not properties.get("simd_count"):
            continue
        lacks = _lacks(root, properties.get("drm_render_minor", 0))
        if lacks:
            closed += 1
            missing = missing or lacks
        else:
            usable.append(_gpu(root, len(usable), properties))
    return KfdGpus(tuple(usable), hidden, closed, missing)


def _nodes(folder: str) -> list[str]:
    """Names of the topology's nodes, by number."""
    numbered = [(number(name), name) for name in entries(folder)]
    return [name for _, name in sorted(pair for pair in numbered if pair[0] is not None)]


def _properties(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        value = number(words[1]) if len(words) == 2 else None
        if value is not None:
            found[words[0]] = value
    return found


def _lacks(root: str, render_minor: int) -> str:
    """The device file that is missing or closed to us; empty if there is none."""
    for path in ("/dev/kfd", f"/dev/dri/renderD{render_minor}"):
        if not os.access(root + path, os.R_OK | os.W_OK, effective_ids=True):
            return path
    return ""


def _gpu(root: str, index: int, properties: dict[str, int]) -> Gpu:
    unique_id = properties.get("unique_id", 0)
    uuid = f"GPU-{unique_id:016x}" if unique_id else ""
    return Gpu(index, uuid, _pci(root, properties), _name(properties))


def _pci(root: str, properties: dict[str, int]) -> str:
    """Bus, device and function from `location_id`, whose upper half numbers a GPU's partitions.

    Some kernels put that number into the function's place instead; then it is function 0.
    """
    location = properties.get("location_id", 0)
    start = f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 31:02x}"
    pci = f"{start}.{location & 7}"
    return pci if exists(f"{root}/sys/bus/pci/devices/{pci}") else f"{start}.0"


def _name(properties: dict[str, int]) -> str:
    """ "AMD gfx942", from a target version of 90402."""
    version = properties.get("gfx_target_version", 0)
    if not version:
        return "AMD GPU"
    return f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
