"""Which source is asked for what, in which order, and what is said of it."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.devices import machine as machine_module
from phalanx.devices import nvidia
from phalanx.devices.machine import Device, Machine, Reading
from phalanx.devices.probe import Answer
from phalanx.devices.python_env import TorchBuild, find_torch
from phalanx.errors import ExitCode, PhalanxError, StartError
from phalanx.outcome import ExitStatus

from . import trees

Make = Callable[..., Machine]

#: A torch that counts `gpus` of each kind; on a line before, as libraries do, it says hello.
TORCH = """
print("hello from a library")
class _Kind:
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    @staticmethod
    def get_device_properties(index):
        class properties:
            pci_domain_id, pci_bus_id, pci_device_id = 0, [{buses}][index], 0
            uuid, name = "aa-%d" % index, "Some GPU"
        return properties
cuda = xpu = accelerator = _Kind
import os, pathlib
pathlib.Path(os.environ["TORCH_USED"]).write_text("used")
"""
VERSION = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.13.0+x'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'cf30'
hip: Optional[str] = {hip!r}
rocm: Optional[str] = None
xpu: Optional[str] = {xpu!r}
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a machine of the tree in `tmp_path/root`, with its own `site` on the Python path."""
    site = tmp_path / "site"
    site.mkdir()
    folders = [folder for folder in sys.path if not has_torch_or_pynvml(folder)]
    monkeypatch.setattr(sys, "path", [str(site), *folders])

    def make(
        nvml: dict[str, str] | None = None,
        python: str = sys.executable,
        allowed: frozenset[int] = frozenset(range(64)),
        **environ: str,
    ) -> Machine:
        path = [str(site)]
        if nvml:
            sys.path.insert(0, nvml["PYTHONPATH"])
            path.append(nvml["PYTHONPATH"])
        whole = {
            **{"PATH": os.environ["PATH"], "TORCH_USED": str(tmp_path / "torch_used")},
            **(nvml or {}),
            "PYTHONPATH": ":".join(path),
            **environ,
        }
        return Machine(whole, python, str(tmp_path / "root"), allowed=allowed)

    return make


def has_torch_or_pynvml(folder: str) -> bool:
    return any((Path(folder or ".") / name).exists() for name in ("torch", "pynvml.py"))


def install_torch(tmp_path: Path, count: int = 0, buses: str = "", **build: str | None) -> None:
    """With `build`, a package whose version.py says for what; else a module that does not say."""
    importlib.invalidate_caches()
    text = TORCH.format(count=count, buses=buses)
    if not build:
        (tmp_path / "site" / "torch.py").write_text(text)
        return
    kinds = {"cuda": None, "hip": None, "xpu": None, **build}
    trees.write(tmp_path, "site/torch/__init__.py", text)
    trees.write(tmp_path, "site/torch/version.py", VERSION.format(**kinds))


def torch_was_used(tmp_path: Path) -> bool:
    return (tmp_path / "torch_used").exists()


def refusal(machine: Machine, word: str = "gpu", **options: bool) -> str:
    with pytest.raises(StartError) as caught:
        machine.count_workers(word, **options)
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert caught.value.hint == "give a number, or auto to use the CPUs"
    start = f"no {word} for --nproc-per-node={word}: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


# NVIDIA


def test_nvidia_gpus_are_counted_by_nvml_without_torch(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=7)
    machine = make(trees.nvml(tmp_path, trees.nvidia_gpus(trees.epyc(tmp_path / "root"))))

    assert machine.count_workers("gpu") == 8
    assert machine.count_workers("auto") == 8
    assert not torch_was_used(tmp_path)
    assert Reading("NVIDIA GPUs", "8 NVIDIA H100 80GB HBM3", "NVML") in machine.readings
    assert machine.notes == []


def test_nvml_is_asked_once(tmp_path: Path, make: Make) -> None:
    machine = make(trees.nvml(tmp_path, trees.nvidia_gpus([1, 2])))
    assert machine.count_workers("gpu") == 2
    (tmp_path / "nvml.json").unlink()

    assert machine.count_workers("gpu") == 2
    assert len(machine.devices()) == 2


def test_nvml_is_never_loaded_here(tmp_path: Path, make: Make) -> None:
    make(trees.nvml(tmp_path, trees.nvidia_gpus([1]))).count_workers("gpu")

    assert "pynvml" not in sys.modules
    assert (tmp_path / "nvml.json.pid").read_text() != str(os.getpid())


def test_devices_are_described_in_the_workers_order(tmp_path: Path, make: Make) -> None:
    gpus = [*trees.nvidia_gpus([0x1A]), *trees.nvidia_gpus([0xB3], name="NVIDIA T4")]
    machine = make(trees.nvml(tmp_path, gpus, octets=True), CUDA_VISIBLE_DEVICES="1,0")

    assert machine.devices() == (
        Device(0, gpus[1]["uuid"], "0000:b3:00.0", "NVIDIA T4", "nvidia"),
        Device(1, gpus[0]["uuid"], "0000:1a:00.0", "NVIDIA H100 80GB HBM3", "nvidia"),
    )
    assert machine.devices()[0].words == f"NVIDIA T4, {gpus[1]['uuid']}, 0000:b3:00.0"
    assert [reading.value for reading in machine.readings if reading.what == "NVIDIA GPUs"] == [
        "1 NVIDIA H100 80GB HBM3 and 1 NVIDIA T4"
    ]


def test_a_list_that_cuda_reads_in_part_is_said(tmp_path: Path, make: Make) -> None:
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus([1, 2, 3]))
    machine = make(nvml, CUDA_VISIBLE_DEVICES="0,2,-1,1")

    assert machine.count_workers("gpu") == 2
    assert machine.notes == [
        "CUDA_VISIBLE_DEVICES=0,2,-1,1: '-1' is no index of a GPU; 2 devices left"
    ]


@pytest.mark.parametrize(
    ("value", "gpus", "reason"),
    [
        ("", 2, "CUDA_VISIBLE_DEVICES='' hides all 2 GPUs"),
        ("7", 1, "CUDA_VISIBLE_DEVICES='7' hides the only GPU ('7' is none of this node's GPUs)"),
        ("0", 0, "NVIDIA's driver is loaded, but NVML counts no GPU"),
    ],
)  # fmt: skip
def test_no_gpu_left_is_said_with_the_reason(
    tmp_path: Path, make: Make, value: str, gpus: int, reason: str
) -> None:
    install_torch(tmp_path, count=3)
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus(range(gpus)))

    assert refusal(make(nvml, CUDA_VISIBLE_DEVICES=value)) == reason
    assert not torch_was_used(tmp_path)


@pytest.mark.parametrize("sign", ["proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg"])
def test_a_driver_without_nvidia_ml_py_is_left_to_torch(
    tmp_path: Path, make: Make, sign: str
) -> None:
    trees.write(tmp_path / "root", sign, "")
    install_torch(tmp_path, count=5)
    machine = make()

    assert machine.count_workers("gpu") == 5
    assert machine.devices() == ()
    known = [r.value for r in machine.readings if r.what == "NVIDIA GPUs"]
    assert known == ["not known: nvidia-ml-py is not installed"]


@pytest.mark.parametrize("fails", ["NVMLError_LibRmVersionMismatch", "crash"])
def test_what_nvml_cannot_tell_is_left_to_torch(tmp_path: Path, make: Make, fails: str) -> None:
    install_torch(tmp_path, count=0)
    reason = refusal(make(trees.nvml(tmp_path, fails=fails)))

    said = {
        "crash": "the child that asked NVML was killed by SIGSEGV",
        "NVMLError_LibRmVersionMismatch": "RM has detected an NVML/RM version mismatch.",
    }[fails]
    assert reason.replace(" and dumped core", "") == (
        f"torch finds none on this node (NVIDIA: {said})"
    )


def test_a_gpu_that_does_not_answer_is_left_to_torch(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=1)
    gpus = [*trees.nvidia_gpus([1]), {"lost": True}]
    machine = make(trees.nvml(tmp_path, gpus))

    assert machine.count_workers("gpu") == 1
    known = [r.value for r in machine.readings if r.what == "NVIDIA GPUs"]
    assert known == ["not known: GPU 1 does not answer (GPU is lost)"]


@pytest.mark.parametrize("fails", ["NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"])
def test_without_a_driver_nvml_is_believed_that_there_is_none(
    tmp_path: Path, make: Make, fails: str
) -> None:
    machine = make(trees.nvml(tmp_path, fails=fails), python="/other/python")
    trees.mi300(tmp_path / "root", gpus=3)

    assert machine.count_workers("gpu") == 3


def test_a_driver_that_hangs_is_named_with_what_to_do(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "NVML_TIMEOUT_S", 1.0)
    with pytest.raises(StartError) as caught:
        make(trees.nvml(tmp_path, fails="hang")).count_workers("auto")

    assert str(caught.value) == "NVML (NVIDIA's driver) has not answered for 1 s"
    assert "nvidia-smi" in caught.value.hint
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_an_answer_that_breaks_off_is_none() -> None:
    out = "noise\nphalanx\tgpu\t0\tGPU-a\t0\t1\t0\t0\tH100\n"

    assert nvidia.parse_nvml(Answer(ExitStatus(0), out + "phalanx\tend\n")).gpus
    assert nvidia.parse_nvml(Answer(ExitStatus(0), out)).gpus is None


GPU_LINE = "phalanx\tgpu\t0\tGPU-a\t0\t1\t0\t1\tH100\n"
END = "phalanx\tend\n"


@pytest.mark.parametrize(
    "out",
    [
        GPU_LINE.replace("\t0\t1\t0\t", "\tzz\t1\t0\t") + END,
        GPU_LINE.replace("\t0\t1\t0\t", "\t0\t-1\t0\t") + END,
        GPU_LINE.replace("gpu\t0", "gpu\tx") + END,
        GPU_LINE.replace("gpu\t0", "gpu\t1") + END,
        GPU_LINE + GPU_LINE + END,
        "phalanx\tmig\t7\tMIG-a\t1\t2\n" + GPU_LINE + END,
        GPU_LINE + "phalanx\tmig\t0\tMIG-a\tNone\tx\n" + END,
        "phalanx\tgpu\t0\tbad\n" + END,
        END + GPU_LINE + END,
        GPU_LINE + END + END,
    ],
    ids=["domain", "negative", "index", "order", "twice", "mig", "instance", "bad", "end", "ends"],
)
def test_an_answer_of_nvml_that_makes_no_sense_tells_nothing(out: str) -> None:
    found = nvidia.parse_nvml(Answer(ExitStatus(0), out))

    assert (found.driver, found.gpus) == (True, None)
    assert found.problem.startswith("NVML's answer has '")


def test_an_answer_of_nvml_that_was_cut_tells_nothing() -> None:
    found = nvidia.parse_nvml(Answer(ExitStatus(0), GPU_LINE + END, cut=True))

    assert found.gpus is None
    assert found.problem == "NVML's answer was too long to be read from its beginning"


def test_a_name_from_the_driver_neither_ends_a_line_nor_is_obeyed(
    tmp_path: Path, make: Make
) -> None:
    gpu = {"uuid": "GPU-1\x85x\u2028", "bus": 1, "name": "\x1b[31mX"}
    machine = make(trees.nvml(tmp_path, [gpu]))

    assert machine.count_workers("gpu") == 1
    assert machine.devices()[0].words == "?[31mX, GPU-1?x?, 0000:01:00.0"
    assert "1 ?[31mX" in [reading.value for reading in machine.readings]


class BrokenFinder:
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in ("torch", "pynvml"):
            raise ImportError("not \x1bhere")


def test_a_finder_of_imports_that_fails_leaves_it_to_torch(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make(TORCH_USED=str(tmp_path / "used"))
    trees.write(tmp_path / "root", "dev/nvidiactl", "")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, BrokenFinder()])

    assert "torch" in refusal(machine)
    known = [r.value for r in machine.readings if r.what == "NVIDIA GPUs"]
    why = "a finder of imports failed (ImportError: not ?here)"
    assert known == [f"not known: nvidia-ml-py cannot be looked for: {why}"]


# For display


def test_for_display_a_driver_that_hangs_is_waited_for_shortly(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_FOR_DISPLAY_S", 0.5)
    machine = make(trees.nvml(tmp_path, fails="hang"))

    assert machine.devices_for_display() == ()
    last = machine.readings[-1]
    said = "not known: NVML (NVIDIA's driver) has not answered for 0 s"
    assert (last.what, last.value) == ("devices", said)


def test_for_display_the_devices_are_the_same(tmp_path: Path, make: Make) -> None:
    machine = make(trees.nvml(tmp_path, trees.nvidia_gpus([1, 2])))

    assert len(machine.devices_for_display()) == 2
    assert machine.devices_for_display() == machine.devices()


@pytest.mark.parametrize("error", [StartError("no fork", ""), RuntimeError("a bug")])
def test_for_display_nothing_that_goes_wrong_is_raised(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = make()
    monkeypatch.setattr(machine, "_nvidia", lambda: raises(error))

    assert machine.devices_for_display() == ()
    assert str(error) in machine.readings[-1].value


def test_for_display_a_stop_signal_still_counts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make()
    stopped = PhalanxError("stopped on request", exit_code=ExitCode.STOPPED)
    monkeypatch.setattr(machine, "_nvidia", lambda: raises(stopped))

    with pytest.raises(PhalanxError, match="stopped on request"):
        machine.devices_for_display()


def raises(error: Exception) -> None:
    raise error


# MIG


def mig_gpus() -> list[dict[str, Any]]:
    parts = [["MIG-a", 1, 0], ["MIG-b", 2, 0], ["MIG-c", 3, 0]]
    return [*trees.nvidia_gpus([0x1A], mig=[]), *trees.nvidia_gpus([0xAF], mig=parts)]


def test_of_mig_devices_a_process_sees_one(tmp_path: Path, make: Make) -> None:
    nvml = trees.nvml(tmp_path, mig_gpus())
    machine = make(nvml, CUDA_VISIBLE_DEVICES="MIG-b,MIG-a")

    assert machine.count_workers("gpu") == 1
    assert [device.uuid for device in machine.devices()] == ["MIG-b"]
    (note,) = machine.notes
    assert note == (
        "CUDA_VISIBLE_DEVICES names 2 MIG devices, of which CUDA gives a process the first; "
        "--virtual-local-rank gives each worker one of its own"
    )


@pytest.mark.parametrize(("value", "count"), [("MIG-b,MIG-a", 2), ("MIG-b,MIG-x,MIG-a", 1)])
def test_with_one_device_each_all_mig_devices_are_used(
    tmp_path: Path, make: Make, value: str, count: int
) -> None:
    nvml = trees.nvml(tmp_path, mig_gpus())
    machine = make(nvml, CUDA_VISIBLE_DEVICES=value)

    assert machine.count_workers("gpu", one_device_each=True) == count
    assert machine.count_workers("auto", one_device_each=True) == count
    assert len(machine.devices(one_device_each=True)) == count


def test_a_gpu_in_mig_mode_meant_as_a_whole_is_left_to_torch(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=1)

    assert make(trees.nvml(tmp_path, mig_gpus())).count_workers("gpu") == 1
    assert torch_was_used(tmp_path)


def test_without_nvml_names_of_mig_devices_are_counted_if_torch_sees_one(
    tmp_path: Path, make: Make
) -> None:
    trees.write(tmp_path / "root", "dev/nvidiactl", "")
    install_torch(tmp_path, count=1)
    machine = make(CUDA_VISIBLE_DEVICES="MIG-b,MIG-a,MIG-c")

    assert machine.count_workers("gpu") == 1
    assert machine.count_workers("gpu", one_device_each=True) == 3


# AMD


def test_amd_gpus_are_counted_by_the_kernel_without_torch(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=7)
    trees.mi300(tmp_path / "root")
    for node in (2, 3, 5, 6, 7, 9):
        trees.hide_kfd_node(tmp_path / "root", node)
    machine = make()

    assert machine.count_workers("gpu") == 2
    assert machine.count_workers("auto") == 2
    assert not torch_was_used(tmp_path)
    words = "2 AMD gfx942, 6 of 8 not for this container"
    assert Reading("AMD GPUs", words, "/sys/class/kfd/kfd/topology/nodes") in machine.readings


def test_amds_variables_are_heeded(tmp_path: Path, make: Make) -> None:
    buses = trees.mi300(tmp_path / "root")
    machine = make(ROCR_VISIBLE_DEVICES="5,GPU-badc0ffee0000002,1", HIP_VISIBLE_DEVICES="1,0,3")

    assert machine.count_workers("gpu") == 2
    assert [d.pci for d in machine.devices()] == [f"0000:{buses[n]:02x}:00.0" for n in (2, 5)]
    assert machine.notes == [
        "HIP_VISIBLE_DEVICES: '3' is none of the 3 GPUs that are left; 2 devices left"
    ]


def test_no_amd_gpu_left_is_said_with_the_reason(tmp_path: Path, make: Make) -> None:
    trees.mi300(tmp_path / "root", gpus=2)
    hidden = refusal(make(ROCR_VISIBLE_DEVICES=""))
    (tmp_path / "root/dev/kfd").unlink()

    assert hidden == "ROCR_VISIBLE_DEVICES='' hides all 2 GPUs"
    assert refusal(make()) == (
        "AMD GPUs: none that can be used, 2 of 2 cannot be opened (/dev/kfd)"
    )


# torch


def test_what_no_other_source_knows_is_asked_of_torch(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=3)
    machine = make()

    assert machine.count_workers("gpu") == 3
    assert machine.count_workers("xpu") == 3
    assert machine.readings[-1] == Reading("torch.xpu.device_count()", "3", sys.executable)


def test_the_xpu_is_asked_of_torch_whatever_else_there_is(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=2, cuda="12.8")

    assert make(trees.nvml(tmp_path, trees.nvidia_gpus([1]))).count_workers("xpu") == 2


def test_both_vendors_the_one_that_torch_was_built_for_comes_first(
    tmp_path: Path, make: Make
) -> None:
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus([1]))
    trees.mi300(tmp_path / "root", gpus=4)

    assert make(nvml).count_workers("gpu") == 1
    install_torch(tmp_path, hip="6.4")
    assert make(nvml).count_workers("gpu") == 4
    assert make(nvml).count_workers("auto") == 4


# auto


def test_auto_with_a_torch_for_cpus_is_the_cpus_without_an_import(
    tmp_path: Path, make: Make
) -> None:
    install_torch(tmp_path, count=3, cuda=None)
    trees.mi300(tmp_path / "root", gpus=4)
    machine = make(trees.nvml(tmp_path, trees.nvidia_gpus([1])))

    assert machine.count_workers("auto") == 64
    assert not torch_was_used(tmp_path)
    source = str(tmp_path / "site/torch/version.py")
    assert machine.readings[:2] == [
        Reading("torch", "2.13.0+x, built for CPUs only", source),
        Reading("auto", "the CPUs: no device for the workers' torch", source),
    ]


def test_auto_with_a_torch_for_cuda_and_no_driver_is_the_cpus_without_an_import(
    tmp_path: Path, make: Make
) -> None:
    """The torch that pip installs by default, on a laptop."""
    install_torch(tmp_path, count=3, cuda="12.8")
    trees.mi300(tmp_path / "root", gpus=4)

    assert make().count_workers("auto") == 64
    assert not torch_was_used(tmp_path)


@pytest.mark.parametrize("value", ["", "-1"])
def test_auto_with_all_gpus_hidden_is_the_cpus(tmp_path: Path, make: Make, value: str) -> None:
    install_torch(tmp_path, count=3, cuda="12.8")
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus([1, 2]))

    assert make(nvml, CUDA_VISIBLE_DEVICES=value).count_workers("auto") == 64
    assert not torch_was_used(tmp_path)


def test_auto_without_torch_is_the_gpus_or_the_cpus(tmp_path: Path, make: Make) -> None:
    assert make().count_workers("auto") == 64
    assert make(trees.nvml(tmp_path, trees.nvidia_gpus([1, 2]))).count_workers("auto") == 2


def test_auto_asks_a_torch_with_a_device_of_another_maker(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=6, cuda=None)
    points = "[console_scripts]\nx = y:z\n\n[torch.backends]\nnpu = maker:autoload\n"
    trees.write(tmp_path, "site/torch_npu-2.13.dist-info/entry_points.txt", points)
    machine = make()

    assert machine.count_workers("auto") == 6
    assert machine.readings[0].value == (
        "2.13.0+x, built for CPUs only and the devices of torch_npu-2.13"
    )


def test_auto_asks_a_torch_for_intels_gpus(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=2, xpu="20250101")

    assert make().count_workers("auto") == 2


def test_auto_asks_where_nvml_cannot_tell(tmp_path: Path, make: Make) -> None:
    install_torch(tmp_path, count=2, cuda="12.8")
    nvml = trees.nvml(tmp_path, fails="NVMLError_LibRmVersionMismatch")

    assert make(nvml).count_workers("auto") == 2


def test_no_other_vendors_device_stands_in_for_what_nvml_cannot_tell(
    tmp_path: Path, make: Make
) -> None:
    """A processor of AMD may have a small GPU in it."""
    trees.write(tmp_path / "root", "dev/nvidiactl", "")
    trees.mi300(tmp_path / "root", gpus=1)

    assert make().devices() == ()


@pytest.mark.parametrize("count", [0, 3])
def test_auto_asks_a_torch_that_is_not_known(tmp_path: Path, make: Make, count: int) -> None:
    install_torch(tmp_path, count)

    assert make().count_workers("auto") == count or 64
    assert torch_was_used(tmp_path)


def test_auto_asks_the_torch_of_another_interpreter(tmp_path: Path, make: Make) -> None:
    """What is installed for us says nothing of it."""
    install_torch(tmp_path, count=3, cuda=None)
    (tmp_path / "python").symlink_to(sys.executable)
    machine = make(python=str(tmp_path / "python"))

    assert machine.count_workers("auto") == 3
    assert [r.source for r in machine.readings if r.what.startswith("torch")] == [
        str(tmp_path / "python")
    ]


def test_a_torch_in_the_current_directory_says_nothing(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    install_torch(tmp_path, cuda="12.8")
    monkeypatch.chdir(tmp_path / "site")
    sys.path[0] = ""

    assert find_torch() == TorchBuild()


@pytest.mark.parametrize("text", ["", "cuda = None\n", "import x\n__version__ = '1'\nhip = None\n"])
def test_a_version_file_of_another_form_says_nothing(tmp_path: Path, make: Make, text: str) -> None:
    install_torch(tmp_path, count=3, cuda=None)
    (tmp_path / "site/torch/version.py").write_text(text)

    assert find_torch() is None
    assert make().count_workers("auto") == 3


def test_the_torch_that_is_installed_here_is_read_right() -> None:
    build = find_torch()

    assert build is not None
    assert build.found
    said = runpy.run_path(build.source)
    assert build.version == said["__version__"]
    kinds = ("cuda", "hip", "xpu")
    assert [getattr(build, kind) for kind in kinds] == [said[kind] is not None for kind in kinds]
    assert "torch" not in vars(machine_module)


# Binding


def test_workers_are_bound_near_the_devices_that_they_see(tmp_path: Path, make: Make) -> None:
    buses = trees.xeon(tmp_path / "root")
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus(buses))
    machine = make(nvml, CUDA_VISIBLE_DEVICES="2,0")

    odd, even = (tuple(range(first, 32, 2)) for first in (1, 0))
    assert machine.bind("node", 2) == (odd, even)
    assert machine.bind("exclusive", 1) == (odd,)
    assert Reading(
        "CPUs of local rank 1",
        ",".join(map(str, even)),
        "NUMA node 0 (NVIDIA H100 80GB HBM3 at 0000:1a:00.0)",
    ) in machine.readings  # fmt: skip
    assert machine.notes == []


def test_only_our_own_cpus_are_bound_to(tmp_path: Path, make: Make) -> None:
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus(trees.xeon(tmp_path / "root")))
    machine = make(nvml, allowed=frozenset({0, 16, 1}))

    assert machine.bind("node", 3) == ((0, 16), (0, 16), (1,))
    with pytest.raises(StartError, match="NUMA node 0 has 1 core to use and 2 devices"):
        machine.bind("exclusive", 2)


def test_amds_gpus_are_bound_to_as_well(tmp_path: Path, make: Make) -> None:
    trees.epyc(tmp_path / "root")
    trees.mi300(tmp_path / "root", gpus=4)
    machine = make(HIP_VISIBLE_DEVICES="3,0")

    assert [one[0] for one in machine.bind("core-complex", 2)] == [16, 0]


def test_mig_devices_are_bound_to_where_their_gpu_is(tmp_path: Path, make: Make) -> None:
    trees.xeon(tmp_path / "root")
    nvml = trees.nvml(tmp_path, mig_gpus())
    machine = make(nvml, CUDA_VISIBLE_DEVICES="MIG-b,MIG-a")

    assert [one[:2] for one in machine.bind("node", 2)] == [(1, 3), (1, 3)]


def test_torch_is_asked_for_addresses_where_no_other_source_knows(
    tmp_path: Path, make: Make
) -> None:
    trees.xeon(tmp_path / "root")
    install_torch(tmp_path, count=2, buses="0xaf, 0x1a")
    machine = make()

    assert [one[:2] for one in machine.bind("node", 2)] == [(1, 3), (0, 2)]
    assert Reading("GPUs that torch sees", "2", sys.executable) in machine.readings


def bind_refusal(machine: Machine, mode: str = "node", workers: int = 1) -> str:
    with pytest.raises(StartError) as caught:
        machine.bind(mode, workers)
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert "leave --numa-binding out" in caught.value.hint
    return str(caught.value)


def test_binding_without_an_accelerator(tmp_path: Path, make: Make) -> None:
    start = "--numa-binding=node: no accelerator to be near to: "
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('no torch here')")
    without_torch = bind_refusal(make())
    install_torch(tmp_path)

    assert without_torch == f"{start}torch could not be asked: ImportError: no torch here"
    assert bind_refusal(make()) == f"{start}torch finds none on this node"
    hidden = make(trees.nvml(tmp_path, trees.nvidia_gpus([1])), CUDA_VISIBLE_DEVICES="")
    assert bind_refusal(hidden) == f"{start}CUDA_VISIBLE_DEVICES='' hides the only GPU"


def test_binding_more_workers_than_devices(tmp_path: Path, make: Make) -> None:
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus(trees.xeon(tmp_path / "root")))

    assert bind_refusal(make(nvml), workers=4) == "--numa-binding=node: 4 workers, but 3 devices"


def test_binding_to_a_device_that_sysfs_does_not_know(tmp_path: Path, make: Make) -> None:
    nvml = trees.nvml(tmp_path, trees.nvidia_gpus([0x77]))

    assert bind_refusal(make(nvml)) == (
        "--numa-binding=node: /sys/bus/pci/devices has no 0000:77:00.0 of device 0 "
        "(NVIDIA H100 80GB HBM3)"
    )


@pytest.mark.parametrize(
    ("environ", "noted"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0000001a,GPU-0000003b"}, False),
    ],
)
def test_models_that_cuda_may_number_otherwise_are_said(
    tmp_path: Path, make: Make, environ: dict[str, str], noted: bool
) -> None:
    trees.xeon(tmp_path / "root")
    gpus = [*trees.nvidia_gpus([0x1A]), *trees.nvidia_gpus([0x3B], name="NVIDIA T4")]
    machine = make(trees.nvml(tmp_path, gpus), **environ)
    machine.bind("node", 2)

    assert [note[:48] for note in machine.notes] == (
        ["--numa-binding: the GPUs are of different models"] if noted else []
    )
