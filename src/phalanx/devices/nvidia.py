"""NVIDIA's GPUs, from NVML by way of nvidia-ml-py (`pip install phalanx[nvidia]`), in a child.

NVML knows a GPU's UUID, its place on the PCI bus and whether it is in MIG mode, without touching
CUDA; CUDA is never initialised for counting. Without nvidia-ml-py nothing but the presence of the
driver is known. Tested with a module of the same names, and never run on a machine with GPUs.
"""

from __future__ import annotations

import os
import sys

from phalanx.devices.files import exists
from phalanx.devices.foreign import harmless, number, quoted, shortened
from phalanx.devices.probe import ask
from phalanx.devices.python_env import why_missing
from phalanx.devices.records import Gpu, MigDevice
from phalanx.record import Record, replace
from phalanx.report.words import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.devices.probe import Answer

__all__ = ["NVML_TIMEOUT_S", "NvidiaGpus", "parse_nvml", "read_nvidia"]

#: A driver that is not kept loaded takes a second or two for each GPU.
NVML_TIMEOUT_S = 60.0

#: What is there when the driver is loaded: bare metal, container, and the Linux of Windows.
_SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")


class NvidiaGpus(Record):
    """What is known of NVIDIA's GPUs here."""

    #: Is there a driver? False: there are none, for sure.
    driver: bool
    #: In NVML's order, which is that of the PCI bus; None: not known.
    gpus: tuple[Gpu, ...] | None = None
    #: Why not; or how there can be a driver and no GPU.
    problem: str = ""
    #: Where it was read.
    source: str = "NVML"


def read_nvidia(
    environ: Mapping[str, str], root: str = "/", timeout_s: float | None = None
) -> NvidiaGpus:
    """Ask NVML. Raises StartError if it does not answer in a minute, or in `timeout_s`."""
    sign = next((path for path in _SIGNS if exists(root.rstrip("/") + path)), "")
    missing = why_missing("pynvml")
    if missing:
        problem = f"nvidia-ml-py {missing}" if sign else "no driver"
        return NvidiaGpus(bool(sign), None if sign else (), problem, sign or "/proc and /dev")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_program.py")
    answer = ask(
        [sys.executable, "-P", program],
        environ,
        whom="NVML (NVIDIA's driver)",
        timeout_s=NVML_TIMEOUT_S if timeout_s is None else timeout_s,
        hint="see whether nvidia-smi answers, and what dmesg says of NVRM; or give numbers",
    )
    found = parse_nvml(answer)
    if found.gpus is None and not sign and found.problem in _NO_DRIVER:
        return NvidiaGpus(False, (), found.problem)
    return found


_NO_GPU = "NVIDIA's driver is loaded, but NVML counts no GPU"
#: What NVML says where there is no driver.
_NO_DRIVER = ("NVML Shared Library Not Found", "Driver Not Loaded")


def parse_nvml(answer: Answer) -> NvidiaGpus:
    """What `nvml_program` has printed; anything that it does not print makes all of it doubtful."""
    if answer.cut:
        return NvidiaGpus(True, problem="NVML's answer was too long to be read from its beginning")
    gpus: list[Gpu] = []
    facts = _facts(answer.out)
    for place, words in enumerate(facts, start=1):
        match words:
            case ["lost", index, problem]:
                return NvidiaGpus(True, problem=_said(f"GPU {index} does not answer ({problem})"))
            case ["error", _, problem]:
                return NvidiaGpus(True, problem=_said(problem))
            case ["end"] if place == len(facts):
                return NvidiaGpus(True, tuple(gpus), "" if gpus else _NO_GPU)
            case _:
                if not _take(words, gpus):
                    return NvidiaGpus(True, problem=f"NVML's answer has {quoted(' '.join(words))}")
    return NvidiaGpus(True, problem=f"the child that asked NVML {describe(answer.status)}")


def _take(words: list[str], gpus: list[Gpu]) -> bool:
    """Add what a line says to the GPUs; False if it makes no sense there."""
    match words:
        case ["gpu", index, uuid, *place, mig, name] if len(place) == 3:
            numbers = [number(word) for word in place]
            if number(index) != len(gpus) or any(n is None or n < 0 for n in numbers):
                return False
            domain, bus, device = (n or 0 for n in numbers)
            pci = f"{domain:04x}:{bus:02x}:{device:02x}.0"
            gpus.append(Gpu(len(gpus), harmless(uuid), pci, harmless(name), mig == "1"))
            return True
        case ["mig", index, uuid, *instances] if len(instances) == 2:
            gpu_instance, compute_instance = map(number, instances)
            if not gpus or number(index) != len(gpus) - 1:
                return False  # its GPU's line is just before
            if gpu_instance is None or compute_instance is None:
                return False
            part = MigDevice(harmless(uuid), gpu_instance, compute_instance)
            gpus[-1] = replace(gpus[-1], mig_devices=(*gpus[-1].mig_devices, part))
            return True
    return False


def _said(text: str) -> str:
    return harmless(shortened(text))


def _facts(text: str) -> list[list[str]]:
    # Not splitlines(), for which a name's U+2028 would be the end of a line.
    rows = (line.split("\t") for line in text.split("\n"))
    return [row[1:] for row in rows if row[0] == "phalanx" and len(row) > 1]
