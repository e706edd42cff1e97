"""A small part of everything under the other supported versions of Python, where they are found.

They are looked for by name on PATH and among pyenv's versions. Only the standard library is used.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from harness import PROGRAMS, Run, dumps, finished

SUPPORTED = ("3.11", "3.12", "3.13")
OTHERS = [v for v in SUPPORTED if v != "{}.{}".format(*sys.version_info)]
#: What the other version must make of the same lines.
LINES = [
    ["--nproc-per-node=2", "--max_restarts", "3", "-mr3", "mod", "--log", "x", "--", "-h"],
    ["--rdzv-e", "host:1", "--", "--odd", "${local_rank}"],
    ["--nproc", "2", "--log", "x"],
    ["--standalon3"],
    ["--node-rank", "-1", "s.py"],
    [],
]
READS = """
import json, sys
from phalanx.cli.parse import parse
from phalanx.errors import UsageError
def read(words):
    try:
        return repr(parse(words, {"PET_STANDALONE": "on"}))
    except UsageError as error:
        return f"{error}; {error.hint}"
print(json.dumps([read(words) for words in json.loads(sys.argv[1])]))
"""
IMPORTS_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted((root / "phalanx").rglob("*.py")):
    if path.name not in ("run_path.py", "__main__.py"):
        importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
"""


@functools.cache
def interpreter(version: str) -> str | None:
    """One that works, of this version; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = filter(None, [shutil.which(f"python{version}")])
    for candidate in (*sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python"))), *named):
        program = "import sys; print('{}.{}'.format(*sys.version_info))"
        done = subprocess.run(
            [candidate, "-c", program], capture_output=True, text=True, check=False
        )
        if done.stdout.strip() == version:
            return candidate
    return None


@pytest.fixture(params=OTHERS)
def python(request: pytest.FixtureRequest) -> str:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} here")
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with nothing in it but the package, to be the other interpreter's PYTHONPATH."""
    folder = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(phalanx.__file__).parent, folder / "phalanx", ignore=ignore)
    return folder


@pytest.fixture
def env(source: Path, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "dumps").mkdir()
    return {
        "PYTHONPATH": str(source),
        "TMPDIR": str(tmp_path / "tmp"),
        "DUMP_DIR": str(tmp_path / "dumps"),
        "PYTHONWARNINGS": "error",
    }


def test_two_workers_a_restart_and_nothing_left(
    python: str, env: dict[str, str], tmp_path: Path
) -> None:
    words = ["--nproc-per-node=2", "--max-restarts=1", PROGRAMS / "env_dump.py"]
    launcher = (python, "-m", "phalanx")
    with Run(*words, "--fail-times=1", "--gather=2", launcher=launcher, env=env) as run:
        assert run.wait() == 0, run.stderr
        run.nothing_left()

    assert "exited with code 3; restart 1 of 1" in run.stderr
    found = dumps(tmp_path / "dumps")
    assert [(d["env"]["TORCHELASTIC_RESTART_COUNT"], d["env"]["RANK"]) for d in found] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert {os.path.realpath(d["executable"]) for d in found} == {os.path.realpath(python)}
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_stop(python: str, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import signal; print('up', flush=True); signal.pause()")
    launcher = (python, "-m", "phalanx")
    with Run("s.py", launcher=launcher, env=env, cwd=tmp_path) as run:
        run.says("up")
        run.signal(signal.SIGTERM)

        assert run.wait() == 120
        run.nothing_left()
    assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"


def test_an_error_file(python: str, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("raise ValueError('boom')")
    words = ["--run-path", "--log-dir=logs", "s.py"]
    run = finished(*words, launcher=(python, "-m", "phalanx"), env=env, cwd=tmp_path)

    assert run.process.returncode == 1
    file = tmp_path / "logs" / "latest" / "attempt_0" / "0" / "error.json"
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: boom"


def test_a_module_and_a_mistake(python: str, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("print('ran')")
    launcher = (python, "-m", "phalanx")
    fine = finished("-m", "mod", launcher=launcher, env=env, cwd=tmp_path)
    wrong = finished("-m", "no_such", launcher=launcher, env=env, cwd=tmp_path)

    assert (fine.process.returncode, fine.stdout, fine.stderr) == (0, "ran\n", "")
    assert wrong.process.returncode == 66
    assert len(wrong.stderr.splitlines()) == 2


def test_lines_are_read_alike(python: str, env: dict[str, str]) -> None:
    words = ["-c", READS, json.dumps(LINES)]
    theirs, ours = (
        subprocess.run([each, *words], env={**os.environ, **env}, capture_output=True, check=True)
        for each in (python, sys.executable)
    )

    assert json.loads(theirs.stdout) == json.loads(ours.stdout)
    assert len(json.loads(ours.stdout)) == len(LINES)


def test_every_module_can_be_imported_without_a_warning(
    python: str, env: dict[str, str], source: Path
) -> None:
    words = [python, "-W", "error", "-c", IMPORTS_ALL, str(source)]
    done = subprocess.run(
        words, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
