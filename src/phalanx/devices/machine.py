"""What this node has to run workers on: CPUs, accelerators, and which of them are near each other.

The cheapest source that can tell is asked, each at most once:

1. NVIDIA: NVML, in a child (`nvidia`).
2. AMD: the kernel's own list (`kfd`).
3. Whatever they cannot tell: torch, in a child of the workers' interpreter (`ask_torch`), which
   takes seconds.

What the first two list is then cut down as the vendor's variables say (`visible`). torch is never
imported here. Each answer leaves a `Reading`, so that a person can see where a number comes from;
what everybody should know, once, goes into `notes`.
"""

from __future__ import annotations

import sys

from phalanx.devices.cpus import affinity, cpu_quota
from phalanx.devices.foreign import harmless, quoted, shortened
from phalanx.devices.records import Device, Gpu, Reading, Visible
from phalanx.devices.visible import amd_visible, cuda_visible, is_list_of_indices, mig_names
from phalanx.errors import ExitCode, PhalanxError, StartError
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.devices.kfd import KfdGpus
    from phalanx.devices.python_env import TorchBuild

__all__ = ["Device", "Machine", "Reading"]


#: A question whose answer is only shown is not worth a longer wait.
_FOR_DISPLAY_S = 3.0


class _Found(Record):
    """What is known of one vendor's GPUs."""

    vendor: str
    #: Is there anything of this vendor here?
    present: bool
    #: What workers see of it.
    visible: Visible = Visible()
    #: Why workers see none, for people.
    none_because: str = ""


class Machine:
    """This node's devices. One object for each start of phalanx; nothing is asked twice."""

    def __init__(
        self,
        environ: Mapping[str, str],
        python: str,
        root: str = "/",
        *,
        allowed: frozenset[int] | None = None,
    ) -> None:
        """`python`: the workers' interpreter; `root`: where /sys, /proc and /dev are found.

        `allowed`: the CPUs to count with; None: those of this process.
        """
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self._environ = environ
        self._python = python
        self._root = root.rstrip("/")
        self._allowed = affinity() if allowed is None else allowed
        self._usable_cpus = 0
        self._vendors: dict[str, _Found] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._build: TorchBuild | None = None
        self._build_read = False
        self._nvml_timeout_s: float | None = None

    # CPUs

    def usable_cpus(self) -> int:
        """CPUs that workers may run on, or fewer where a quota gives the time of fewer."""
        if not self._usable_cpus:
            cpus = len(self._allowed)
            source = "affinity"
            quota = cpu_quota(self._root)
            if quota is not None:
                self._read("CPU quota", f"{quota.cpus:g} CPUs", quota.source)
            if quota is not None and quota.whole_cpus < cpus:
                source = f"CPU quota (affinity: {cpus})"
                self.notes.append(
                    f"{quota.whole_cpus} of {cpus} CPUs are counted: the CPU quota is "
                    f"{quota.cpus:g} ({quota.source})"
                )
                cpus = quota.whole_cpus
            self._read("usable CPUs", str(cpus), source)
            self._usable_cpus = cpus
        return self._usable_cpus

    # Counting

    def count_workers(self, word: str, *, one_device_each: bool = False) -> int:
        """How many workers "cpu", "gpu", "xpu" or "auto" mean.

        `one_device_each`: each worker gets one entry of CUDA_VISIBLE_DEVICES, which makes a
        difference for MIG devices only. Raises StartError if there is no such device.
        """
        match word:
            case "cpu":
                return self.usable_cpus()
            case "auto":
                return self._auto(one_device_each) or self.usable_cpus()
            case "gpu":
                return self._gpu(one_device_each)
            case _:
                return self._torchs_count(word, one_device_each)

    def _gpu(self, one_device_each: bool) -> int:
        reasons: list[str] = []
        for vendor in self._order():
            found = self._vendor(vendor)
            if found.visible.unclear:
                return self._torchs_count("gpu", one_device_each, found.visible.unclear)
            if found.visible.devices:
                return self._number(found, one_device_each)
            if found.present:
                reasons.append(found.none_because)
        if reasons:
            raise self._no_such("gpu", "; ".join(reasons))
        build = self._torch()
        if build is not None and build.found and not build.accelerated:
            nobody = (
                "there is no NVIDIA driver and no AMD GPU here, and torch is built for CPUs only"
            )
            raise self._no_such("gpu", nobody)
        return self._torchs_count("gpu", one_device_each)

    def _auto(self, one_device_each: bool) -> int:
        """The accelerators that the workers' torch would take; 0: none, so the CPUs are meant."""
        build = self._torch()
        if build is not None and build.plugin:
            return self._torchs_count("auto", one_device_each)
        for vendor in self._order(only_of_torch=True):
            found = self._vendor(vendor)
            if found.visible.unclear:
                return self._torchs_count("auto", one_device_each)
            if found.visible.devices:
                return self._number(found, one_device_each)
        if build is None or build.xpu:
            return self._torchs_count("auto", one_device_each)
        self._read("auto", "the CPUs: no device for the workers' torch", build.source or "no torch")
        return 0

    def _order(self, *, only_of_torch: bool = False) -> list[str]:
        """Whose GPUs to look for, those that the workers' torch was built for first."""
        build = self._torch()
        if build is None or not build.found:
            return ["nvidia", "amd"]
        first = [name for name, has in (("nvidia", build.cuda), ("amd", build.hip)) if has]
        rest = [] if only_of_torch else [v for v in ("nvidia", "amd") if v not in first]
        return first + rest

    def _number(self, found: _Found, one_device_each: bool) -> int:
        devices = found.visible.devices
        if not devices[0].mig or one_device_each or len(devices) == 1:
            return len(devices)
        self.notes.append(
            f"CUDA_VISIBLE_DEVICES names {len(devices)} MIG devices, of which CUDA gives a process "
            "the first; --virtual-local-rank gives each worker one of its own"
        )
        return 1

    def _torchs_count(self, word: str, one_device_each: bool, unclear: str = "") -> int:
        """What torch counts; 0 for "auto" only. `unclear`: what would have been asked instead."""
        count, problem = self._ask_torch(word)
        if count and one_device_each:
            count = max(count, mig_names(self._environ.get("CUDA_VISIBLE_DEVICES")))
        if not count and word != "auto":
            reason = problem or "torch finds none on this node"
            raise self._no_such(word, f"{reason} ({unclear})" if unclear else reason)
        return count

    def _no_such(self, word: str, reason: str) -> StartError:
        return StartError(
            f"no {word} for --nproc-per-node={word}: {reason}",
            "give a number, or auto to use the CPUs",
            exit_code=ExitCode.UNAVAILABLE,
        )

    # Devices and CPUs near them

    def devices(self, *, one_device_each: bool = False) -> tuple[Device, ...]:
        """The accelerators that a worker sees, in the order of its indices.

        From NVML and the kernel only, never from torch; empty if these cannot tell.
        `one_device_each`: those of all workers together, where each has one of a list.
        """
        for vendor in self._order():
            visible = self._vendor(vendor).visible
            if visible.unclear:
                return ()
            if visible.devices:
                whole = one_device_each or not visible.devices[0].mig
                return visible.devices if whole else visible.devices[:1]
        return ()

    def devices_for_display(self, *, one_device_each: bool = False) -> tuple[Device, ...]:
        """The same, to be shown to a person: in three seconds, or not at all.

        Whatever goes wrong leaves a reading that says why. Only a stop signal is raised.
        """
        self._nvml_timeout_s = _FOR_DISPLAY_S
        try:
            return self.devices(one_device_each=one_device_each)
        except Exception as error:
            if isinstance(error, PhalanxError) and error.exit_code == ExitCode.STOPPED:
                raise
            problem = str(error) if isinstance(error, PhalanxError) else repr(error)
            self._read("devices", f"not known: {shortened(problem)}", "NVML, KFD")
            return ()
        finally:
            self._nvml_timeout_s = None

    def bind(self, mode: str, local_world_size: int) -> tuple[tuple[int, ...], ...]:
        """CPUs of each local rank, sorted, by `--numa-binding` (see `numa`).

        Raises StartError if it cannot be told which, or there are none.
        """
        from phalanx.devices.cpulist import format_cpu_list
        from phalanx.devices.numa import assign
        from phalanx.devices.topology import read_topology

        devices = self._devices_to_bind_to(mode)
        nodes = [self._numa_node(mode, device) for device in devices]
        topology = read_topology(self._allowed, self._root or "/")
        sets = assign(mode, topology, nodes, local_world_size)
        for local_rank, cpus in enumerate(sets):
            device = devices[local_rank]
            where = f"NUMA node {nodes[local_rank]} ({device.name} at {device.pci})"
            self._read(f"CPUs of local rank {local_rank}", format_cpu_list(cpus), where)
        return sets

    def _devices_to_bind_to(self, mode: str) -> tuple[Device, ...]:
        devices = self.devices(one_device_each=True)
        reason = ""
        if not devices:
            from phalanx.devices.ask_torch import properties

            found = [self._vendor(vendor) for vendor in self._order()]
            hidden = [one.none_because for one in found if one.present and one.none_because]
            if hidden and not any(one.visible.unclear for one in found):
                reason = "; ".join(hidden)
            else:
                devices, reason = properties(self._python, self._environ)
                self._read("GPUs that torch sees", str(len(devices)), self._python)
        if not devices:
            raise StartError(
                f"--numa-binding={mode}: no accelerator to be near to: "
                f"{reason or 'torch finds none on this node'}",
                "leave --numa-binding out",
                exit_code=ExitCode.UNAVAILABLE,
            )
        self._note_order(devices)
        return devices

    def _note_order(self, devices: tuple[Device, ...]) -> None:
        """CUDA puts the fastest first unless told otherwise; NVML has the order of the bus."""
        models = {gpu.name for gpu in self._gpus}
        by_index = is_list_of_indices(self._environ.get("CUDA_VISIBLE_DEVICES"))
        in_bus_order = self._environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if devices[0].vendor == "nvidia" and len(models) > 1 and by_index and not in_bus_order:
            self.notes.append(
                "--numa-binding: the GPUs are of different models, which CUDA may number otherwise "
                "than they are on the bus; CUDA_DEVICE_ORDER=PCI_BUS_ID makes it certain"
            )

    def _numa_node(self, mode: str, device: Device) -> int:
        from phalanx.devices.topology import node_of_pci_device

        node = node_of_pci_device(device.pci, self._root or "/")
        if node is None:
            raise StartError(
                f"--numa-binding={mode}: /sys/bus/pci/devices has no "
                f"{device.pci or 'address'} of device {device.index} ({device.name})",
                "mount /sys of the machine into the container, or leave --numa-binding out",
                exit_code=ExitCode.UNAVAILABLE,
            )
        return node

    # Sources

    def _vendor(self, name: str) -> _Found:
        if name not in self._vendors:
            self._vendors[name] = self._nvidia() if name == "nvidia" else self._amd()
        return self._vendors[name]

    def _nvidia(self) -> _Found:
        from phalanx.devices.nvidia import read_nvidia

        found = read_nvidia(self._environ, self._root or "/", self._nvml_timeout_s)
        if found.gpus is None:
            self._read("NVIDIA GPUs", f"not known: {found.problem}", found.source)
            return _Found("nvidia", True, Visible(unclear=f"NVIDIA: {found.problem}"))
        self._gpus = found.gpus
        self._read("NVIDIA GPUs", _listed(found.gpus) or f"none: {found.problem}", found.source)
        value = self._environ.get("CUDA_VISIBLE_DEVICES")
        visible = cuda_visible(found.gpus, value)
        if found.gpus and value is not None:
            self._read("CUDA_VISIBLE_DEVICES", quoted(value), "environment")
            if visible.cut:
                shown = harmless(shortened(value))
                self._note_cut(f"CUDA_VISIBLE_DEVICES={shown}: {visible.cut}", visible)
        why = found.problem
        if found.gpus:
            why = _hides_all(f"CUDA_VISIBLE_DEVICES={quoted(value or '')}", found.gpus, visible)
        return _Found("nvidia", found.driver, visible, why)

    def _amd(self) -> _Found:
        from phalanx.devices.kfd import FOLDER, read_kfd

        found = read_kfd(self._root or "/")
        if not found.total:
            self._read("AMD GPUs", "none", FOLDER)
            return _Found("amd", False)
        self._read("AMD GPUs", _kfd_in_words(found), FOLDER)
        visible = amd_visible(found.usable, self._environ)
        names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        given = {name: self._environ[name] for name in names if name in self._environ}
        for name, value in given.items():
            self._read(name, quoted(value), "environment")
        if visible.cut:
            self._note_cut(visible.cut, visible)
        if found.usable:
            hiding = ", ".join(f"{name}={quoted(value)}" for name, value in given.items())
            why = _hides_all(hiding, found.usable, visible)
        else:
            why = f"AMD GPUs: {_kfd_in_words(found)}"
        return _Found("amd", True, visible, why)

    def _note_cut(self, cut: str, visible: Visible) -> None:
        left = len(visible.devices)
        self.notes.append(f"{cut}; {left} device{'' if left == 1 else 's'} left")

    def _torch(self) -> TorchBuild | None:
        """For what the workers' torch was built; None if that cannot be told."""
        from phalanx.devices.python_env import find_torch

        if not self._build_read:
            self._build_read = True
            if self._python == sys.executable and not sys.flags.ignore_environment:
                self._build = find_torch()
            if self._build is not None:
                source = self._build.source or self._python
                self._read("torch", self._build.for_people, source)
        return self._build

    def _ask_torch(self, word: str) -> tuple[int, str]:
        from phalanx.devices.ask_torch import count, expression

        number, problem = count(self._python, self._environ, word)
        self._read(expression(word), problem or str(number), self._python)
        return number, problem

    def _read(self, what: str, value: str, source: str) -> None:
        self.readings.append(Reading(harmless(what), harmless(value), harmless(source)))


def _hides_all(variables: str, gpus: tuple[Gpu, ...], visible: Visible) -> str:
    which = "the only GPU" if len(gpus) == 1 else f"all {len(gpus)} GPUs"
    return f"{variables} hides {which}" + (f" ({visible.cut})" if visible.cut else "")


def _listed(gpus: tuple[Gpu, ...]) -> str:
    """ "8 NVIDIA H100", "1 NVIDIA A100 and 1 NVIDIA T4"; empty for none."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    return " and ".join(f"{count} {name}" for name, count in counts.items())


def _kfd_in_words(found: KfdGpus) -> str:
    parts = [_listed(found.usable) or "none that can be used"]
    if found.hidden:
        parts.append(f"{found.hidden} of {found.total} not for this container")
    if found.closed:
        parts.append(f"{found.closed} of {found.total} cannot be opened ({found.missing})")
    return ", ".join(parts)
