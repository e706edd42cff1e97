"""PURE: what is known of a node's accelerators, and where it was read."""

from __future__ import annotations

from phalanx.devices.foreign import harmless
from phalanx.record import Record

__all__ = ["Device", "Gpu", "MigDevice", "Reading", "Visible"]


class Reading(Record):
    """One thing that was found out about this machine, in words for people."""

    what: str
    value: str
    source: str


class MigDevice(Record):
    """A part of an NVIDIA GPU in MIG mode, as NVML lists it."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(Record):
    """A GPU of this node, whether or not a worker will see it."""

    #: Place in the order of NVML (PCI bus order) or of KFD's nodes.
    index: int
    #: "GPU-..."; empty if it has none.
    uuid: str
    #: As sysfs spells it, "0000:1b:00.0"; empty if unknown.
    pci: str
    name: str
    #: NVIDIA's MIG mode: the GPU itself cannot be used, its parts can.
    mig_mode: bool = False
    mig_devices: tuple[MigDevice, ...] = ()


class Device(Record):
    """An accelerator that a worker sees."""

    #: The number by which a worker knows it.
    index: int
    uuid: str
    #: As sysfs spells it; of a MIG device that of the GPU it is part of; empty if unknown.
    pci: str
    name: str
    #: "nvidia", "amd", or "torch" for what only torch knows of.
    vendor: str
    mig: bool = False

    @property
    def words(self) -> str:
        """For people: what it is, which one, and where; a driver's names may hold anything."""
        return harmless(", ".join(filter(None, (self.name, self.uuid, self.pci))))


class Visible(Record):
    """What the variables that hide devices leave, as far as can be said without the vendor."""

    devices: tuple[Device, ...] = ()
    #: Why this cannot be told here, and torch has to be asked; empty: it can.
    unclear: str = ""
    #: Where and why the list in the variable was not read to its end, for people.
    cut: str = ""
