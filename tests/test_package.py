"""What is shipped: the installed wheel, its commands and types; and rules that the source keeps."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import phalanx

CHECKOUT = Path(__file__).parent.parent
SOURCE = CHECKOUT / "src" / "phalanx"
MODULES = sorted(SOURCE.rglob("*.py"))
#: For development: PYTHONPATH=src PHALANX_TEST_SOURCE=1 pytest tests
FROM_SOURCE = os.environ.get("PHALANX_TEST_SOURCE") == "1"
#: A file that is longer has two subjects; a table grows by rows, which is no harm.
MAX_LINES = 500
TABLES = ("differences.py",)
#: Files of the standard library that a launcher loads, for scripts named like them.
SHADOWS = "argparse ctypes enum marshal select signal socket subprocess textwrap traceback".split()

installed_only = pytest.mark.skipif(FROM_SOURCE, reason="PHALANX_TEST_SOURCE=1: nothing installed")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def command() -> Path:
    """The console command that pip made."""
    return Path(sys.executable).parent / "phalanx"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a wheel built from the source, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    built = run(*pip, "--no-build-isolation", "--wheel-dir", folder, CHECKOUT)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@installed_only
def test_the_tests_run_against_the_installed_package() -> None:
    assert phalanx.__file__ is not None
    where = Path(phalanx.__file__).resolve()

    assert not where.is_relative_to(SOURCE), f"{where} is the source: set PHALANX_TEST_SOURCE=1"


@installed_only
def test_the_installed_package_is_the_source_as_it_is_now() -> None:
    assert phalanx.__file__ is not None
    there = Path(phalanx.__file__).parent

    different = [name_of(p) for p in MODULES if (there / name_of(p)).read_text() != p.read_text()]

    assert not different, "run `make test`, which installs the source anew"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}

    assert "phalanx/py.typed" in wheel
    assert tops == {"phalanx", f"phalanx-{phalanx.__version__}.dist-info"}
    assert {f"phalanx/{name_of(path)}" for path in MODULES} <= set(wheel)
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)
    assert not [name for name in wheel if "test_" in name or name.endswith(".pyc")]


@installed_only
def test_the_core_requires_nothing() -> None:
    requires = importlib.metadata.requires("phalanx") or []

    assert [line for line in requires if "extra ==" not in line] == []


@installed_only
def test_the_metadata_name_the_version_and_the_python() -> None:
    metadata = importlib.metadata.metadata("phalanx")

    assert metadata["Version"] == phalanx.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"


@installed_only
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["--no-such-option"], []])
def test_the_command_and_the_module_are_the_same(command: Path, words: list[str]) -> None:
    as_command = run(command, *words)
    as_module = run(sys.executable, "-m", "phalanx", *words)

    assert (as_command.returncode, as_command.stdout, as_command.stderr) == (
        as_module.returncode,
        as_module.stdout,
        as_module.stderr,
    )


def test_the_version_is_printed() -> None:
    shown = run(sys.executable, "-m", "phalanx", "--version")

    assert (shown.returncode, shown.stdout) == (0, f"phalanx {phalanx.__version__}\n")


@pytest.mark.parametrize(
    "launcher",
    ["module", pytest.param("command", marks=installed_only)],
)
@pytest.mark.parametrize("workers", [["script.py"], ["-m", "script"]], ids=["script", "module"])
def test_files_named_like_the_standard_library_do_not_break_the_launcher(
    tmp_path: Path, command: Path, launcher: str, workers: list[str]
) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the user')\n")
    # In one write: what print() writes in two may be torn apart by the other worker.
    (tmp_path / "script.py").write_text("import sys; sys.stdout.write(sys.path[0] + chr(10))\n")
    start = [command] if launcher == "command" else [sys.executable, "-m", "phalanx"]

    ended = run(*start, "--nproc-per-node=2", *workers, cwd=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"{tmp_path.resolve()}\n" * 2, "the workers' own path is as ever"


def test_running_the_package_where_it_lies_works() -> None:
    """Its folder is the current directory, and is taken off the path."""
    ended = run(sys.executable, "-m", "phalanx", "--version", cwd=SOURCE.parent)

    assert ended.returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_module_says_what_it_is_for_and_names_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

    assert ast.get_docstring(tree)
    if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body):
        assert "__all__" in assigned or path.name == "run_path.py"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path) not in TABLES], ids=name_of
)
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def text_files() -> list[Path]:
    folders = ("src", "tests", "docs", "examples", "benchmarks", "scripts")
    files = [path for folder in folders for path in (CHECKOUT / folder).rglob("*")]
    files += [CHECKOUT / name for name in ("README.md", "CHANGELOG.md", "Makefile")]
    return [path for path in files if path.suffix in (".py", ".md", ".sh", ".txt", "")]


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    theirs = re.compile(r"/(?:home|Users|root|work)/\w")

    found = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()}"
        for path in text_files()
        if path.is_file() and not {"__pycache__", ".ruff_cache"} & set(path.parts)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if theirs.search(line) and "theirs =" not in line
    ]

    assert found == []


USER_MODULE = """
from phalanx import __version__
from phalanx.errors import EXIT_CODES, ExitCode, PhalanxError

version: str = __version__
meanings: dict[int, str] = {int(row.code): row.meaning for row in EXIT_CODES}


def code_of(error: PhalanxError) -> ExitCode:
    return ExitCode(error.exit_code)
"""


@installed_only
def test_a_users_module_is_type_checked_against_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(USER_MODULE)

    checked = run(sys.executable, "-m", "mypy", "--strict", "users.py", cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout
