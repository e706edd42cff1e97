"""Whole runs of phalanx on machines that are made up: by a module, or by other mounts."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, SLACK, Run, eventually, finished
from phalanx.errors import ExitCode

from . import trees

COUNT = ("--no-python", "sh", "-c", "echo $WORLD_SIZE")


def environment(*folders: Path | str, **more: str) -> dict[str, str]:
    """With these folders first on the workers' Python path."""
    path = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": ":".join(map(os.path.abspath, ":".join(path).split(":"))), **more}


def with_nvml(folder: Path, *gpus: dict[str, Any], **more: Any) -> dict[str, str]:
    found = trees.nvml(folder, gpus, **more)
    return environment(found["PYTHONPATH"], FAKE_NVML=found["FAKE_NVML"])


def with_torch(folder: Path, text: str, **files: str) -> dict[str, str]:
    trees.write(folder, "torch/__init__.py", text)
    for name, content in files.items():
        trees.write(folder, f"torch/{name}.py", content)
    return environment(folder)


# What is counted


def test_gpus_are_counted_by_nvml(tmp_path: Path) -> None:
    env = with_nvml(tmp_path, *trees.nvidia_gpus([1, 2, 3]))
    some = {**env, "CUDA_VISIBLE_DEVICES": "2,0"}

    assert finished("--nproc-per-node=gpu", *COUNT, env=env).stdout == "3\n" * 3
    assert finished("--nproc-per-node=gpu", *COUNT, env=some).stdout == "2\n" * 2


def test_hidden_gpus_are_an_error_with_the_reason(tmp_path: Path) -> None:
    env = {**with_nvml(tmp_path, *trees.nvidia_gpus([1])), "CUDA_VISIBLE_DEVICES": ""}
    done = finished("--nproc-per-node=gpu", *COUNT, env=env)

    assert done.process.returncode == ExitCode.UNAVAILABLE
    start = "phalanx: error: no gpu for --nproc-per-node=gpu: "
    assert done.stderr.splitlines() == [
        f"{start}CUDA_VISIBLE_DEVICES='' hides the only GPU",
        "phalanx: hint: give a number, or auto to use the CPUs",
    ]


def test_auto_does_not_import_a_torch_for_cpus(tmp_path: Path) -> None:
    version = "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\nxpu = None\n"
    env = with_torch(tmp_path, f"open({str(tmp_path / 'imported')!r}, 'w')", version=version)
    done = finished("--nproc-per-node=auto", *COUNT, env=env)

    assert done.process.returncode == 0
    assert {*done.stdout.split()} == {str(len(done.stdout.split()))}
    assert not (tmp_path / "imported").exists()


def test_gpus_count_whatever_the_workers_torch_was_built_for(tmp_path: Path) -> None:
    """The workers need not be torch's; `auto` is about what torch can use."""
    version = "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\nxpu = None\n"
    env = with_nvml(tmp_path, *trees.nvidia_gpus([1, 2, 3]))
    of_torch = with_torch(tmp_path, "raise SystemExit('imported')", version=version)
    env["PYTHONPATH"] += f":{of_torch['PYTHONPATH']}"

    assert finished("--nproc-per-node=gpu", *COUNT, env=env).stdout == "3\n" * 3


# Stopped while counting


@pytest.fixture(params=["nvml", "torch"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment in which counting GPUs hangs, and SIGTERM alone would not end that."""
    if request.param == "nvml":
        return with_nvml(tmp_path, fails="hang")
    started = str(tmp_path / "nvml.json.pid")
    return with_torch(
        tmp_path,
        "import os, pathlib, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        f"pathlib.Path({started!r}).write_text(str(os.getpid()))\n"
        "while True: signal.pause()\n",
    )


def child_of(folder: Path) -> int:
    file = folder / "nvml.json.pid"
    return int(eventually(lambda: file.exists() and file.read_text(), what="the child") or 0)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_counting_ends_phalanx(
    tmp_path: Path, hanging: dict[str, str], signum: signal.Signals
) -> None:
    with Run("--nproc-per-node=gpu", *COUNT, env=hanging) as run:
        child_of(tmp_path)
        run.signal(signum)

        assert run.wait(2.0 * SLACK) == ExitCode.STOPPED
        assert run.stdout == ""
        (line,) = run.stderr.splitlines()
        assert line.endswith(f"stopped on request ({signum.name}) before the workers were started")
        run.nothing_left()


def test_when_phalanx_is_killed_while_counting_the_child_is_gone(
    tmp_path: Path, hanging: dict[str, str]
) -> None:
    with Run("--nproc-per-node=gpu", *COUNT, env=hanging) as run:
        child_of(tmp_path)
        run.signal(signal.SIGKILL)

        run.nothing_left()


def test_ctrl_c_in_a_terminal_while_counting_ends_phalanx(
    tmp_path: Path, hanging: dict[str, str]
) -> None:
    terminal, of_phalanx = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *PHALANX, "--nproc-per-node=gpu", *COUNT],
        env={**os.environ, **hanging},
        stdin=of_phalanx,
        stdout=of_phalanx,
        stderr=of_phalanx,
        start_new_session=True,
    )
    os.close(of_phalanx)
    try:
        child_of(tmp_path)
        os.write(terminal, b"\x03")

        assert process.wait(2.0 * SLACK) == ExitCode.STOPPED
        assert b"stopped on request (SIGINT)" in os.read(terminal, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


# Other mounts

#: Mounts `$TREE/sys` and what `$TREE/dev` has over the machine's, in a namespace of its own.
OTHER_MOUNTS = """
set -e
mkdir -p "$TREE/new_dev" "$TREE/sys" "$TREE/dev"
mount -t tmpfs none "$TREE/new_dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$TREE/new_dev"
cp -a "$TREE/dev/." "$TREE/new_dev"
mount --rbind "$TREE/new_dev" /dev
if [ -n "$(ls "$TREE/sys")" ]; then mount --rbind "$TREE/sys" /sys; fi
exec "$@"
"""


def elsewhere(root: Path, *words: str, **env: str) -> Run:
    launcher = ("unshare", "--mount", "sh", "-c", OTHER_MOUNTS, "sh", *PHALANX)
    return finished(*words, launcher=launcher, env={"TREE": str(root), **env})


@pytest.mark.root
def test_a_container_with_two_of_eight_amd_gpus(tmp_path: Path) -> None:
    trees.mi300(tmp_path)
    for node in (2, 3, 5, 6, 7, 9):
        trees.hide_kfd_node(tmp_path, node)
    done = elsewhere(tmp_path, "--nproc-per-node=gpu", *COUNT)
    one = elsewhere(tmp_path, "--nproc-per-node=gpu", *COUNT, HIP_VISIBLE_DEVICES="1")

    assert (done.stdout, done.stderr) == ("2\n" * 2, "")
    assert (one.stdout, one.stderr) == ("1\n", "")


@pytest.mark.root
def test_amd_gpus_that_cannot_be_opened(tmp_path: Path) -> None:
    trees.mi300(tmp_path, device_files=False)
    done = elsewhere(tmp_path, "--nproc-per-node=gpu", *COUNT)

    assert done.process.returncode == ExitCode.UNAVAILABLE
    assert done.stderr.splitlines()[0] == (
        "phalanx: error: no gpu for --nproc-per-node=gpu: AMD GPUs: none that can be used, "
        "8 of 8 cannot be opened (/dev/kfd)"
    )


# A quota


@pytest.fixture
def one_cpu() -> Iterator[Path]:
    """A real control group that may use the time of one CPU and a half."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    name = f"phalanx-test-{uuid.uuid4().hex[:8]}"
    if (v1 / "cpu.cfs_period_us").exists():
        group, limits = v1 / name, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    elif "cpu" in _words_of(v2 / "cgroup.subtree_control"):
        group, limits = v2 / name, {"cpu.max": "150000 100000"}
    else:
        pytest.skip("no control group for CPUs can be made here")
    group.mkdir()
    try:
        for file, value in limits.items():
            (group / file).write_text(value)
        yield group
    finally:
        eventually(lambda: not _words_of(group / "cgroup.procs"), what="an empty group")
        group.rmdir()


def _words_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.root
@pytest.mark.parametrize("word", ["cpu", "auto"])
def test_the_quota_of_a_real_control_group_counts(one_cpu: Path, tmp_path: Path, word: str) -> None:
    enter = 'echo $$ >"$GROUP/cgroup.procs" && exec "$@"'
    version = "__version__ = '2.13.0+cpu'\ncuda = None\nhip = None\nxpu = None\n"
    env = {**with_torch(tmp_path, "", version=version), "GROUP": str(one_cpu)}
    launcher = ("sh", "-c", enter, "sh", *PHALANX)
    done = finished(f"--nproc-per-node={word}", *COUNT, launcher=launcher, env=env)

    assert (done.process.returncode, done.stdout) == (0, "1\n")


# Binding

SHOW_CPUS = ("--no-python", "sh", "-c", "echo $RANK $(taskset -cp $$ | sed 's/.*: //')")


@pytest.mark.root
def test_workers_run_on_the_cpus_near_their_gpu(tmp_path: Path) -> None:
    """The first GPU is at the node of the last CPU."""
    ours = sorted(os.sched_getaffinity(0))
    ends = [[ours[0]], [ours[-1]]]
    trees.cpu_tree(tmp_path, ends, ends, ends, ends)
    for bus, node in ((0x1A, 1), (0x3B, 0)):
        trees.pci_device(tmp_path, f"0000:{bus:02x}:00.0", node)
    env = with_nvml(tmp_path, *trees.nvidia_gpus([0x1A, 0x3B]))
    words = ("--nproc-per-node=gpu", "--numa-binding=node", *SHOW_CPUS)
    done = elsewhere(tmp_path, *words, **env)

    assert done.process.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"0 {ours[-1]}", f"1 {ours[0]}"]


def test_a_driver_that_hangs_does_not_keep_a_dry_run(tmp_path: Path) -> None:
    """It shows what it can: a start with a number would not ask at all."""
    (tmp_path / "pynvml.py").write_text("import time; time.sleep(100)\n")
    (tmp_path / "s.py").write_text("")
    env = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    run = finished("--dry-run", "--nproc-per-node=1", "s.py", cwd=tmp_path, env=env, timeout=30)

    assert run.process.returncode == 0
    assert "NVML (NVIDIA's driver) has not answered for 3 s" in run.stdout


@pytest.mark.torch
def test_no_gpu_and_a_torch_for_cpus_is_told_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("")
    run = finished("--nproc-per-node=gpu", "s.py", cwd=tmp_path)

    said = [line for line in run.stderr.splitlines() if line.startswith("phalanx:")]
    assert said[0] == (
        "phalanx: error: no gpu for --nproc-per-node=gpu: there is no NVIDIA driver and no AMD GPU "
        "here, and torch is built for CPUs only"
    )
    assert run.process.returncode == ExitCode.UNAVAILABLE
