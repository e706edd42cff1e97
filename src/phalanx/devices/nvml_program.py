"""A program of its own: print what NVML says of the NVIDIA GPUs of this node.

It runs in a child (see `nvidia`), so that a driver that hangs or crashes, or the threads that it
starts, never touch the agent. It prints a line for each fact, tab-separated, each beginning with
`phalanx` (a `sitecustomize` may print as well), and `end` when all is said. The names of the
functions are those of nvidia-ml-py 12 and 13; only such a module, not a real GPU, was there to test
it with.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__all__ = ["main"]


def main() -> None:
    try:
        nvml = importlib.import_module("pynvml")
    except Exception as error:
        _fact("error", type(error).__name__, error)
        return
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            _one_gpu(nvml, index)
        _fact("end")
    except nvml.NVMLError as error:
        _fact("error", type(error).__name__, error)


def _one_gpu(nvml: Any, index: int) -> None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        mig = _mig_mode(nvml, handle)
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        _fact("gpu", index, uuid, pci.domain, pci.bus, pci.device, mig, name)
        if mig:
            _mig_devices(nvml, index, handle)
    except nvml.NVMLError as error:
        _fact("lost", index, error)


def _mig_mode(nvml: Any, handle: Any) -> int:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return 0  # a GPU, or a driver, that has no such mode
    return int(current)


def _mig_devices(nvml: Any, index: int, gpu: Any) -> None:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            instances = (
                nvml.nvmlDeviceGetGpuInstanceId(handle),
                nvml.nvmlDeviceGetComputeInstanceId(handle),
            )
            _fact("mig", index, nvml.nvmlDeviceGetUUID(handle), *instances)
        except nvml.NVMLError:
            continue  # a place that is not taken, or not ours


def _fact(*words: object) -> None:
    texts = (word.decode() if isinstance(word, bytes) else str(word) for word in words)
    print("phalanx", *(text.replace("\t", " ").replace("\n", " ") for text in texts), sep="\t")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # what the driver's library does at exit is of no use to anyone
