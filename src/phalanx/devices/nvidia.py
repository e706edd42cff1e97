"""NVIDIA's GPUs, from NVML by way of nvidia-ml-py (`pip install phalanx[nvidia]`), in a child.

NVML knows a GPU's UUID, its place on the PCI bus and whether it is in MIG mode, without touching
CUDA; CUDA is never initialised for counting. Without nvidia-ml-py nothing but the presence of the
driver is known. Tested with a module of the same names, and never run on a machine with GPUs.
"""

from __future__ import annotations

import os
import sys

from phalanx.devices.files import exists
from phalanx.devices.probe import ask
from phalanx.devices.python_env import is_installed
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


def read_nvidia(environ: Mapping[str, str], root: str = "/") -> NvidiaGpus:
    """Ask NVML. Raises StartError if it does not answer in a minute."""
    sign = next((path for path in _SIGNS if exists(root.rstrip("/") + path)), "")
    if not is_installed("pynvml"):
        problem = "nvidia-ml-py is not installed" if sign else "no driver"
        return NvidiaGpus(bool(sign), None if sign else (), problem, sign or "/proc and /dev")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_program.py")
    answer = ask(
        [sys.executable, "-P", program],
        environ,
        whom="NVML (NVIDIA's driver)",
        timeout_s=NVML_TIMEOUT_S,
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
    """What `nvml_program` has printed."""
    gpus: dict[int, Gpu] = {}
    for words in _facts(answer.out):
        match words:
            case ["gpu", index, uuid, domain, bus, device, mig, name]:
                pci = f"{int(domain):04x}:{int(bus):02x}:{int(device):02x}.0"
                gpus[int(index)] = Gpu(int(index), uuid, pci, name, mig == "1")
            case ["mig", index, uuid, gpu_instance, compute_instance]:
                gpu = gpus[int(index)]
                part = MigDevice(uuid, int(gpu_instance), int(compute_instance))
                gpus[int(index)] = replace(gpu, mig_devices=(*gpu.mig_devices, part))
            case ["lost", index, problem]:
                return NvidiaGpus(True, problem=f"GPU {index} does not answer ({problem})")
            case ["error", _, problem]:
                return NvidiaGpus(True, problem=problem)
            case ["end"]:
                return NvidiaGpus(True, tuple(gpus.values()), "" if gpus else _NO_GPU)
    return NvidiaGpus(True, problem=f"the child that asked NVML {describe(answer.status)}")


def _facts(text: str) -> list[list[str]]:
    rows = (line.split("\t") for line in text.splitlines())
    return [row[1:] for row in rows if row[0] == "phalanx" and len(row) > 1]
