"""`--run-path`: the script runs as `__main__` in a small program that writes its error file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, Run, finished

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SEES = """
import faulthandler, json, os, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "spec": __spec__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "faulthandler": faulthandler.is_enabled(),
    "path": [folder for folder in sys.path if "phalanx" in folder.split(os.sep)[-1:]],
    "rank": os.environ["RANK"],
}))
"""
BOOM = """
def inner():
    raise ValueError("böom")

inner()
"""


def error_files(log_dir: Path) -> list[Path]:
    return sorted(log_dir.rglob("error.json"))


def run_script(tmp_path: Path, text: str, *args: str, launcher: tuple[str, ...] = PHALANX) -> Run:
    (tmp_path / "s.py").write_text(text)
    words = ["--run-path", f"--log-dir={tmp_path}/logs", "s.py", *args]
    return finished(*words, launcher=launcher, cwd=tmp_path)


def test_a_script_is_main_and_gets_its_words(tmp_path: Path) -> None:
    run = run_script(tmp_path, SEES, "--run-path", "${local_rank}", "--", "b")

    assert run.process.returncode == 0
    assert json.loads(run.stdout) == {
        "argv": ["s.py", "--run-path", "0", "--", "b"],
        "name": "__main__",
        "file": "s.py",
        "spec": None,
        "main": True,
        "faulthandler": True,
        "path": [],
        "rank": "0",
    }


@pytest.mark.torch
def test_a_script_sees_what_it_sees_under_torchrun(tmp_path: Path) -> None:
    args = ("a", "${local_rank}")

    ours = run_script(tmp_path, SEES, *args)
    theirs = run_script(tmp_path, SEES, *args, launcher=TORCHRUN)

    assert json.loads(ours.stdout) == json.loads(theirs.stdout)


def test_the_module_path_of_the_workers_is_left_as_it_is(tmp_path: Path) -> None:
    """With PYTHONSAFEPATH there is no folder of ours in front that has to be taken away."""
    (tmp_path / "first").mkdir()
    (tmp_path / "s.py").write_text("import sys; print([p for p in sys.path if 'first' in p])")
    for safe in ("", "1"):
        path = ":".join([str(tmp_path / "first"), *filter(None, [_source()])])
        env = {"PYTHONPATH": path, "PYTHONSAFEPATH": safe}
        run = finished("--run-path", "s.py", cwd=tmp_path, env=env)
        assert run.stdout == f"{[str(tmp_path / 'first')]}\n", run.stderr


def _source() -> str:
    import phalanx

    return str(Path(phalanx.__file__).parent.parent)


def test_an_exception_leaves_an_error_file_of_every_rank(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(BOOM)
    before = int(time.time())
    run = finished("--run-path", f"--log-dir={tmp_path}/logs", "s.py", cwd=tmp_path)

    assert run.process.returncode == 1
    assert "ValueError: böom" in run.stderr
    found = error_files(tmp_path / "logs")
    assert [path.parent.relative_to(path.parents[2]).as_posix() for path in found] == [
        "attempt_0/0"
    ]
    content = json.loads(found[0].read_text())
    assert content["message"]["message"] == "ValueError: böom"
    extra = content["message"]["extraInfo"]
    assert before <= int(extra["timestamp"]) <= int(time.time())
    assert extra["py_callstack"].endswith(
        'in inner\n    raise ValueError("böom")\nValueError: böom\n'
    )


@pytest.mark.torch
def test_the_error_file_has_the_shape_that_torchs_record_gives_it(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    run_script(tmp_path / "ours", BOOM)
    run_script(tmp_path / "theirs", BOOM, launcher=TORCHRUN)
    ours, theirs = (
        json.loads(error_files(tmp_path / name)[0].read_text()) for name in ("ours", "theirs")
    )

    assert shape(ours) == shape(theirs)
    assert ours["message"]["message"] == theirs["message"]["message"]
    ours_stack, theirs_stack = (
        stack["message"]["extraInfo"]["py_callstack"].partition("<frozen runpy>")[2]
        for stack in (ours, theirs)
    )
    assert ours_stack == theirs_stack


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return type(value).__name__


@pytest.mark.parametrize(
    ("ending", "code", "on_stderr"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(None)", 0, ""),
        ("raise SystemExit", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("sys.exit(256 + 7)", 7, ""),
        ("os._exit(4)", 4, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("os.kill(os.getpid(), 9)", 137, ""),
    ],
)
def test_what_is_no_exception_leaves_no_error_file(
    tmp_path: Path, ending: str, code: int, on_stderr: str
) -> None:
    """A bare `sys.exit()` hangs torchrun for ever; here it is an ordinary end."""
    run = run_script(tmp_path, f"import os, sys\n{ending}\n")

    assert run.process.returncode == code
    assert on_stderr in run.stderr
    assert error_files(tmp_path) == []


def test_without_an_error_file_the_traceback_is_still_printed(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(BOOM)
    run = finished("--run-path", "--log-dir=/dev/null", "s.py", cwd=tmp_path)

    assert run.process.returncode == 1
    assert "ValueError: böom" in run.stderr
    assert "error file" not in run.stderr


def test_an_error_file_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    gone = (
        "import os, shutil\nshutil.rmtree(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']))"
    )
    run = run_script(tmp_path, gone + BOOM)

    assert run.process.returncode == 1
    assert "phalanx: the error file could not be written: " in run.stderr
    assert "ValueError: böom" in run.stderr


def test_each_attempt_has_an_error_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(BOOM)
    words = ["--run-path", "--max-restarts=2", f"--log-dir={tmp_path}/logs", "s.py"]
    run = finished(*words, cwd=tmp_path)

    assert run.process.returncode == 1
    attempts = [path.parents[1].name for path in error_files(tmp_path / "logs")]
    assert attempts == ["attempt_0", "attempt_1", "attempt_2"]


def test_a_worker_leads_a_session_and_is_fresh(tmp_path: Path) -> None:
    """Unlike torchrun's, which is a child of multiprocessing in the launcher's session."""
    program = (
        "import os, sys\n"
        "print(os.getsid(0) == os.getpid(), 'multiprocessing' in sys.modules,\n"
        "      any(name.startswith('phalanx') for name in sys.modules))\n"
    )
    run = run_script(tmp_path, program)

    assert run.stdout == "True False False\n"
