"""Nothing heavy is imported on the way to the workers, and neighbours do not know each other.

The order of the layers and what is pure is held by test_layers.py.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Run

SOURCE = Path(__file__).parent.parent / "src" / "phalanx"
#: As the installed command does it: `-m` would import runpy and what that needs.
LAUNCHER = (
    *(sys.executable, "-X", "importtime"),
    *("-c", "from phalanx.cli.main import main; main()"),
)
#: Each costs milliseconds in the agent and in the fork server, and so in every job.
HEAVY = frozenset(
    "argparse asyncio concurrent contextlib ctypes.util dataclasses difflib inspect json "
    "logging msgspec multiprocessing numpy pathlib pickle psutil random re selectors shutil socket "
    "ssl string subprocess tempfile textwrap threading torch traceback typing urllib uuid".split()
)
#: Of ours, what only some jobs need.
ONLY_WHEN_NEEDED = frozenset(
    "phalanx.agent.job_control phalanx.workers.suspend "
    "phalanx.cli.help phalanx.devices phalanx.differences phalanx.docs_pages "
    "phalanx.net.held_port phalanx.net.store_server phalanx.store".split()
)
FAILS_ONCE = "import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
WAITS = "import signal; print('up', flush=True); signal.pause()"


def imported(stderr: str) -> set[str]:
    """The modules that `-X importtime` names, of the agent and of the fork server it forked."""
    lines = re.finditer(r"^import time:.*\|.*\|(.*)$", stderr, re.MULTILINE)
    return {line[1].strip() for line in lines}


@pytest.fixture(scope="module")
def bare() -> set[str]:
    """What an interpreter imports by itself in this environment."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", ""], capture_output=True, text=True, check=True
    )
    return imported(done.stderr)


def heavy(stderr: str, bare: set[str]) -> set[str]:
    found = imported(stderr) - bare
    assert "phalanx.agent.agent" in found, "the list of imports was read"
    by_whole_or_top = {name for name in found if name in HEAVY or name.split(".")[0] in HEAVY}
    return by_whole_or_top | (found & ONLY_WHEN_NEEDED)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["--nproc-per-node=2", "s.py"], ""),
        (["--max-restarts=1", "s.py"], FAILS_ONCE),
        (["--console=raw", "s.py"], ""),
        (["-m", "s"], ""),
        (["--run-path", "s.py"], ""),
        (["--no-python", "true"], ""),
        (["--master-port=0", "--log-dir=logs", "--role=r", "--virtual-local-rank", "s.py"], ""),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-conf=timeout=3", "s.py"],
         ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_agent_and_fork_server_import_nothing_heavy(
    tmp_path: Path, bare: set[str], words: list[str], script: str
) -> None:
    (tmp_path / "s.py").write_text(script)
    with Run(*words, launcher=LAUNCHER, cwd=tmp_path) as run:
        run.wait()

    assert heavy(run.stderr, bare) == set()


@pytest.mark.parametrize("word", ["cpu", "gpu", "auto"])
def test_counting_devices_imports_nothing_heavy(tmp_path: Path, bare: set[str], word: str) -> None:
    """What is heavy for it is in children: NVML, and torch."""
    fake = Path(__file__).parent / "devices" / "fake_pynvml"
    (tmp_path / "nvml.json").write_text('{"gpus": [{"uuid": "GPU-a", "bus": 1, "name": "H100"}]}')
    path = [str(fake), *map(os.path.abspath, filter(None, [os.environ.get("PYTHONPATH")]))]
    env = {"PYTHONPATH": os.pathsep.join(path), "FAKE_NVML": str(tmp_path / "nvml.json")}
    words = (f"--nproc-per-node={word}", "--no-python", "true")
    with Run(*words, launcher=LAUNCHER, cwd=tmp_path, env=env) as run:
        assert run.wait() == 0

    assert {name for name in heavy(run.stderr, bare) if not name.startswith("phalanx.")} == set()


def test_stopping_imports_nothing_heavy(tmp_path: Path, bare: set[str]) -> None:
    (tmp_path / "s.py").write_text(WAITS)
    with Run("s.py", launcher=LAUNCHER, cwd=tmp_path) as run:
        run.says("up")
        run.signal(signal.SIGTERM)

        assert run.wait() == 120
    assert heavy(run.stderr, bare) == set()


def test_the_imports_of_the_fork_server_are_seen_too(tmp_path: Path) -> None:
    """So that the tests above cannot pass by looking at the agent only."""
    program = (
        "import os, sys\n"
        "import phalanx.workers.fork_server as fork_server\n"
        "run = fork_server.ForkServer.run\n"
        "def run_and_import(self):\n"
        "    import colorsys\n"
        "    run(self)\n"
        "fork_server.ForkServer.run = run_and_import\n"
        "from phalanx.cli.main import main; main()\n"
    )
    launcher = (sys.executable, "-X", "importtime", "-c", program)
    with Run("--no-python", "true", launcher=launcher, cwd=tmp_path) as run:
        assert run.wait() == 0

    assert "colorsys" in imported(run.stderr)


# The source


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all imported modules, in functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_importing_everything_imports_no_torch() -> None:
    names = [
        ".".join(["phalanx", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in modules()
        if path.name not in ("run_path.py", "__main__.py", "__init__.py")  # a program; two run it
    ]
    program = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; \
print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}

    assert {*names} <= {*done.stdout.split()}
    assert not {name for name in loaded if name.startswith("torch")}
    assert not loaded & {"numpy", "msgspec", "psutil"}


#: Neighbours in the picture of the design: each does without the others.
NEIGHBOURS = (
    ("workers", "net"),
    ("clusters", "devices"),
    ("rendezvous", "wire", "store", "report"),
)


@pytest.mark.parametrize("group", NEIGHBOURS, ids=" ".join)
def test_neighbours_do_not_import_each_other(group: tuple[str, ...]) -> None:
    found = set()
    for path in modules():
        own = path.relative_to(SOURCE).parts[0]
        if own in group:
            found |= {
                (name_of(path), name)
                for name in imports(path)
                if name.startswith("phalanx.") and name.split(".")[1] in {*group} - {own}
            }

    assert found == set()


@pytest.mark.parametrize("name", ["cli/parse.py", "cli/spec.py", "cli/options.py", "job.py"])
def test_the_command_line_is_understood_without_a_look_at_the_machine(name: str) -> None:
    """Nothing but our own records, and what costs nothing."""
    outside = {
        top for module in imports(SOURCE / name) if (top := module.split(".")[0]) != "phalanx"
    }

    assert outside <= {"__future__", "collections", "enum", "difflib", "typing"}
