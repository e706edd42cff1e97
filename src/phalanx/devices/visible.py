"""PURE: which of a node's GPUs a process sees, from the variables that hide and reorder them.

NVIDIA. CUDA_VISIBLE_DEVICES, as the CUDA programming guide has it ("CUDA environment variables",
docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html): unset, all
are visible; empty, none; else a list of indices or UUIDs, a UUID being shortened at will as long as
it is the start of one only, and what follows the first invalid entry is not seen. What the guide
leaves open is as torch reads it, since torch's count is what we stand in for: an index is what
C's strtoul makes of the text ("1gpu2" is 1), an entry that is there twice makes the set empty, and
the first entry tells of what kind all are.

MIG. "A single CUDA process can only enumerate a single MIG device", whatever the list says (MIG
user guide, "CUDA device enumeration",
docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html): with names of MIG devices a
process sees the first. Drivers since R470 name them MIG-<UUID>, older ones
MIG-<UUID of the GPU>/<GPU instance>/<compute instance>. What CUDA makes of the index or UUID of a
GPU in MIG mode is for CUDA to say.

AMD. ROCR_VISIBLE_DEVICES is applied by ROCm's runtime, before HIP_VISIBLE_DEVICES by HIP, whose
indices count what the first has left (rocm.docs.amd.com, "GPU isolation techniques"). HIP reads
CUDA_VISIBLE_DEVICES where there is no HIP_VISIBLE_DEVICES. AMD's pages name GPU_DEVICE_ORDINAL for
HIP, too; the source of HIP reads it for OpenCL only, so it is not looked at. An empty variable
hides all, as in torch; a doubled entry ends the list (ROCR) or is passed over (HIP).

Written from these documents and sources; it was never compared with a machine that has such GPUs.
"""

from __future__ import annotations

from phalanx.devices.foreign import number, quoted
from phalanx.devices.records import Device, Gpu, Visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["amd_visible", "cuda_visible", "is_list_of_indices", "mig_names"]


def cuda_visible(gpus: Sequence[Gpu], value: str | None) -> Visible:
    """What CUDA_VISIBLE_DEVICES (None: unset) leaves of the node's GPUs.

    All MIG devices that are named are listed, though one process sees only the first.
    """
    if value is None:
        return _whole(list(range(len(gpus))), gpus)
    if value.startswith("MIG-"):
        return _mig_visible(gpus, value)
    if value.startswith("GPU-"):
        names, cut = _names(value, "GPU-")
        places = [_by_uuid(name, gpus) for name in names]
    else:
        names, places, cut = _indices(value)
        places = [place if place < len(gpus) else -1 for place in places]
    if -1 in places:
        end = places.index(-1)
        cut = f"{quoted(names[end])} is none of this node's GPUs"
        del places[end:]
    if len({*places}) < len(places) or cut == _TWICE:
        return Visible(cut=_TWICE)
    seen = _whole(places, gpus)
    return Visible(seen.devices, seen.unclear, cut)


_TWICE = "a device is named twice, with which CUDA sees none"


def _whole(places: Sequence[int], gpus: Sequence[Gpu]) -> Visible:
    for place in places:
        if gpus[place].mig_mode:
            return Visible(unclear=f"GPU {place} is in MIG mode")
    return Visible(_devices([gpus[place] for place in places], "nvidia"))


def _devices(gpus: Sequence[Gpu], vendor: str) -> tuple[Device, ...]:
    return tuple(
        Device(index, gpu.uuid, gpu.pci, gpu.name, vendor) for index, gpu in enumerate(gpus)
    )


def _names(value: str, start: str) -> tuple[list[str], str]:
    """The entries up to the first of another kind; and what cut the list short."""
    names: dict[str, None] = {}
    for entry in value.split(","):
        if entry in names:
            return [], _TWICE
        if not entry.startswith(start):
            return [*names], f"{quoted(entry)} does not begin with {start}"
        names[entry] = None
    return [*names], ""


def _by_uuid(name: str, gpus: Sequence[Gpu]) -> int:
    """The place of the one GPU whose UUID begins like this; -1 if there is none or several."""
    places = [place for place, gpu in enumerate(gpus) if gpu.uuid.startswith(name)]
    return places[0] if len(places) == 1 else -1


def _indices(value: str) -> tuple[list[str], list[int], str]:
    """The entries up to the first that is no index, the indices, and what cut the list short."""
    names: dict[int, str] = {}
    cut = ""
    for entry in value.split(","):
        index = _strtoul(entry.strip())
        if index in names:
            return [], [], _TWICE
        if index < 0:
            cut = f"{quoted(entry)} is no index of a GPU" if value else ""
            break
        names[index] = entry
    return [*names.values()], [*names], cut


def _strtoul(text: str) -> int:
    """The number that the text begins with, whatever follows; -1 if there is none."""
    sign = text[:1] if text[:1] in ("+", "-") else ""
    rest = text[len(sign) :]
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    value = number(sign + digits)
    return -1 if value is None else value


def is_list_of_indices(value: str | None) -> bool:
    """Do the numbers of the devices, and not their UUIDs, say which ones are meant?"""
    return value is None or not value.startswith(("GPU-", "MIG-"))


# MIG


def mig_names(value: str | None) -> int:
    """How many different MIG devices CUDA_VISIBLE_DEVICES begins with, true names or not."""
    if value is None or not value.startswith("MIG-"):
        return 0
    return len(_names(value, "MIG-")[0])


def _mig_visible(gpus: Sequence[Gpu], value: str) -> Visible:
    names, cut = _names(value, "MIG-")
    devices: list[Device] = []
    for name in names:
        gpu = next((gpu for gpu in gpus if _has_part(gpu, name)), None)
        if gpu is None:
            cut = cut or f"{quoted(name)} is no MIG device of this node"
            break
        devices.append(Device(len(devices), name, gpu.pci, gpu.name, "nvidia", mig=True))
    return Visible(tuple(devices), cut=cut)


def _has_part(gpu: Gpu, name: str) -> bool:
    return any(
        name in (part.uuid, f"MIG-{gpu.uuid}/{part.gpu_instance}/{part.compute_instance}")
        for part in gpu.mig_devices
    )


# AMD


def amd_visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """What ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES leave."""
    left, rocr_cut = _rocr(gpus, environ.get("ROCR_VISIBLE_DEVICES"))
    name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    seen, hip_cut = _hip(left, environ.get(name))
    cuts = [
        f"{variable}: {cut}"
        for variable, cut in (("ROCR_VISIBLE_DEVICES", rocr_cut), (name, hip_cut))
        if cut
    ]
    return Visible(_devices(seen, "amd"), cut="; ".join(cuts))


def _rocr(gpus: Sequence[Gpu], value: str | None) -> tuple[list[Gpu], str]:
    if value is None:
        return list(gpus), ""
    seen: list[Gpu] = []
    for entry in value.split(",") if value else ():
        word = entry.strip()
        place = _by_amd_uuid(word, gpus) if word[:1] in ("g", "G") else _c_integer(word)
        if not 0 <= place < len(gpus) or gpus[place] in seen:
            return seen, f"{quoted(entry)} is no further one of the {len(gpus)} GPUs"
        seen.append(gpus[place])
    return seen, ""


def _by_amd_uuid(word: str, gpus: Sequence[Gpu]) -> int:
    upper = word.upper()
    places = [place for place, gpu in enumerate(gpus) if gpu.uuid.upper().startswith(upper)]
    return places[0] if len(places) == 1 and len(word) > len("GPU-") else -1


def _c_integer(word: str) -> int:
    """As strtol with base 0: 10, 0x1f, 017; -1 if anything else is in it."""
    sign = word[:1] if word[:1] in ("+", "-") else ""
    digits = word[len(sign) :]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" else 10
    try:
        return int(sign + digits, base) if digits.isascii() and digits.isalnum() else -1
    except ValueError:
        return -1


def _hip(gpus: Sequence[Gpu], value: str | None) -> tuple[list[Gpu], str]:
    if value is None:
        return list(gpus), ""
    seen: list[Gpu] = []
    numbered = {str(place): gpu for place, gpu in enumerate(gpus)}
    for entry in value.split(",") if value else ():
        gpu = numbered.get(entry) or _by_hip_uuid(entry, gpus)
        if gpu is None:
            return seen, f"{quoted(entry)} is none of the {len(gpus)} GPUs that are left"
        if gpu not in seen:
            seen.append(gpu)
    return seen, ""


def _by_hip_uuid(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    return next((gpu for gpu in gpus if "GPU-" in entry and entry in gpu.uuid), None)
