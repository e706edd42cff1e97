"""A stand-in for nvidia-ml-py: the names that phalanx uses, with the GPUs that a file describes.

`$FAKE_NVML` is a JSON file: {"gpus": [{"uuid", "bus", "name", "mig": [[uuid, gi, ci], ...]}]}, and
"fails": the class of the error that nvmlInit raises, or "hang", or "crash". What a function returns
has the types that nvidia-ml-py 13.615 returns. Each use leaves its pid in `$FAKE_NVML.pid`.
"""

# ruff: noqa: N801, N802, N818 - the names are nvidia-ml-py's

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


class NVMLError(Exception):
    text = "Unknown Error"

    def __str__(self) -> str:
        return self.text


class NVMLError_LibraryNotFound(NVMLError):
    text = "NVML Shared Library Not Found"


class NVMLError_DriverNotLoaded(NVMLError):
    text = "Driver Not Loaded"


class NVMLError_LibRmVersionMismatch(NVMLError):
    text = "RM has detected an NVML/RM version mismatch."


class NVMLError_NotSupported(NVMLError):
    text = "Not Supported"


class NVMLError_NotFound(NVMLError):
    text = "Not Found"


class NVMLError_GpuIsLost(NVMLError):
    text = "GPU is lost"


class nvmlPciInfo_t:
    def __init__(self, bus: int) -> None:
        self.domain, self.bus, self.device = 0, bus, 0
        self.busId = f"00000000:{bus:02X}:00.0"


_described: dict = {}


def nvmlInit() -> None:
    file = Path(os.environ["FAKE_NVML"])
    Path(f"{file}.pid").write_text(str(os.getpid()))
    _described.update(json.loads(file.read_text()))
    match _described.get("fails"):
        case None:
            return
        case "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            print("the driver hangs", file=sys.stderr, flush=True)
            while True:
                signal.pause()
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case name:
            raise globals()[name]


def nvmlDeviceGetCount() -> int:
    return len(_described["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict:
    gpu = _described["gpus"][index]
    if gpu.get("lost"):
        raise NVMLError_GpuIsLost
    return gpu


def nvmlDeviceGetPciInfo(handle: dict) -> nvmlPciInfo_t:
    return nvmlPciInfo_t(handle["bus"])


def nvmlDeviceGetUUID(handle: dict) -> str:
    return handle["uuid"]


def nvmlDeviceGetName(handle: dict) -> str | bytes:
    return handle["name"].encode() if _described.get("octets") else handle["name"]


def nvmlDeviceGetMigMode(device: dict) -> list[int]:
    if "mig" not in device:
        raise NVMLError_NotSupported
    return [int(bool(device["mig"])), 0]


def nvmlDeviceGetMaxMigDeviceCount(device: dict) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device: dict, index: int) -> dict:
    if index >= len(device["mig"]):
        raise NVMLError_NotFound
    uuid, gpu_instance, compute_instance = device["mig"][index]
    return {"uuid": uuid, "gi": gpu_instance, "ci": compute_instance}


def nvmlDeviceGetGpuInstanceId(device: dict) -> int:
    return device["gi"]


def nvmlDeviceGetComputeInstanceId(device: dict) -> int:
    return device["ci"]
