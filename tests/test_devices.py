"""`--nproc-per-node` cpu, gpu, xpu and auto; and one device for each worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness import PHALANX, Run, finished
from phalanx.devices.machine import Machine
from phalanx.errors import ExitCode

#: One write each: what print() writes in two may be torn apart.
COUNT = "import os; os.write(1, os.environ['WORLD_SIZE'].encode() + b'\\n')\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "s.py").write_text(COUNT)
    return tmp_path


def run(work: Path, word: str, torch: str | None = None, **env: str) -> Run:
    """Run with a stand-in for torch; None: with one that cannot be imported."""
    (work / "stand_in").mkdir(exist_ok=True)
    text = "raise ImportError('no torch here')" if torch is None else torch
    (work / "stand_in" / "torch.py").write_text(text)
    path = [str(work / "stand_in"), *filter(None, [os.environ.get("PYTHONPATH")])]
    joined = ":".join(map(os.path.abspath, ":".join(path).split(":")))
    env = {"PYTHONPATH": joined, **env}
    return finished(f"--nproc-per-node={word}", "s.py", cwd=work, env=env)


def torch_with(kind: str, count: int) -> str:
    return (
        "print('a greeting')\n"
        f"class {kind}:\n"
        f"    is_available = staticmethod(lambda: {count > 0})\n"
        f"    device_count = staticmethod(lambda: {count})\n"
    )


def usable_cpus() -> int:
    """Of this machine, which may be a container with a quota."""
    return Machine({}, sys.executable).usable_cpus()


def test_cpu_is_the_number_of_cpus_that_may_be_used(work: Path) -> None:
    one = str(min(os.sched_getaffinity(0)))
    words = ("taskset", "-c", one, *PHALANX, "--nproc-per-node=cpu", "s.py")
    pinned = finished(launcher=words, cwd=work)

    assert run(work, "cpu").stdout.split() == [str(usable_cpus())] * usable_cpus()
    assert pinned.stdout == "1\n"


@pytest.mark.parametrize(
    ("word", "kind"), [("gpu", "cuda"), ("xpu", "xpu"), ("auto", "accelerator")]
)
def test_accelerators_are_counted_by_torch(work: Path, word: str, kind: str) -> None:
    assert run(work, word, torch_with(kind, 3)).stdout.split() == ["3"] * 3


def test_auto_without_accelerators_is_the_number_of_cpus(work: Path) -> None:
    cpus = usable_cpus()

    assert len(run(work, "auto", torch_with("accelerator", 0)).stdout.split()) == cpus
    assert len(run(work, "auto").stdout.split()) == cpus


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (torch_with("cuda", 0), "torch finds none on this node"),
        (None, "torch could not be asked: ImportError: no torch here"),
        ("import os; os._exit(0)", "torch could not be asked: it said nothing"),
    ],
    ids=["none", "no torch", "silent"],
)
def test_no_such_device_is_said_with_the_reason(work: Path, torch: str | None, reason: str) -> None:
    done = run(work, "gpu", torch)

    assert done.process.returncode == ExitCode.UNAVAILABLE
    assert done.stderr.splitlines() == [
        f"phalanx: error: no gpu for --nproc-per-node=gpu: {reason}",
        "phalanx: hint: give a number, or auto to use the CPUs",
    ]


@pytest.mark.parametrize("word", ["gpu", "xpu", "auto"])
@pytest.mark.parametrize("counted", [-3, 10**8, 10**30, 65537])
def test_a_count_that_cannot_be_true_is_an_error(work: Path, word: str, counted: int) -> None:
    kind = {"gpu": "cuda", "xpu": "xpu", "auto": "accelerator"}[word]
    torch = torch_with(kind, 1).replace("lambda: 1)", f"lambda: {counted})")
    done = run(work, word, torch)

    assert done.process.returncode == ExitCode.UNAVAILABLE
    error, hint = done.stderr.splitlines()
    asked = f"--nproc-per-node={word}: torch.{kind}.device_count() of {sys.executable}"
    assert error == f"phalanx: error: {asked} is {counted}, which is no number of devices"
    assert hint == "phalanx: hint: give a number of workers instead"


def test_a_count_that_is_no_number_is_said(work: Path) -> None:
    torch = torch_with("cuda", 1).replace("lambda: 1)", "lambda: None)")

    assert "torch could not be asked: it counted 'None'" in run(work, "gpu", torch).stderr


def test_what_torch_says_of_its_end_is_harmless(work: Path) -> None:
    done = run(work, "gpu", r"raise RuntimeError('[31mred')")

    assert "torch could not be asked: RuntimeError: ?[31mred" in done.stderr


def test_binding_with_a_torch_that_prints_rubbish_is_an_error(work: Path) -> None:
    (work / "stand_in").mkdir()
    (work / "stand_in" / "torch.py").write_text("print('phalanx foo')\n" + torch_with("cuda", 0))
    env = {"PYTHONPATH": f"{work / 'stand_in'}:{os.environ.get('PYTHONPATH', '')}"}
    done = finished("--numa-binding=node", "s.py", cwd=work, env=env)

    assert done.process.returncode == ExitCode.UNAVAILABLE
    assert "torch could not be asked: its answer has 'foo'" in done.stderr


def test_a_variable_of_thousands_of_digits_is_no_reason_to_fail(work: Path) -> None:
    done = run(work, "gpu", torch_with("cuda", 2), CUDA_VISIBLE_DEVICES="9" * 5000)
    dry = finished("--dry-run", "s.py", cwd=work, env={"CUDA_VISIBLE_DEVICES": "9" * 5000})

    assert (done.process.returncode, dry.process.returncode) == (0, 0)


def test_the_workers_interpreter_is_the_one_that_is_asked(work: Path) -> None:
    done = run(work, "gpu", torch_with("cuda", 1), PYTHON_EXEC="/no/such/python")

    assert "/no/such/python cannot be started: No such file or directory" in done.stderr


def test_a_torch_in_the_current_directory_is_not_asked(work: Path) -> None:
    (work / "torch.py").write_text(torch_with("cuda", 7))

    assert run(work, "gpu", torch_with("cuda", 1)).stdout == "1\n"
