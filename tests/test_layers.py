"""The shape of the source: imports point one way, and what decides touches nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "phalanx"
MODULES = sorted(SOURCE.rglob("*.py"))

#: From the top to the bottom. A module may import its own layer and those below.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"launch"}),
    frozenset({"__main__", "docs_pages"}),
    frozenset({"cli"}),
    frozenset({"clusters", "devices"}),
    frozenset({"agent"}),
    frozenset({"workers", "net"}),
    frozenset({"console"}),
    frozenset({"rendezvous", "wire", "store", "report"}),
    frozenset({"job", "outcome", "errors", "differences", "say", "signals"}),
    frozenset({"record", "__init__"}),
)
#: Packages and modules that decide: the same event at the same time gives the same effects.
PURE = (
    *("rendezvous", "wire", "store", "report"),
    *(
        "cli/console.py",
        "cli/dry_run.py",
        "cli/parse.py",
        "cli/rendezvous.py",
        "cli/restarts.py",
        "cli/spec.py",
        "cli/values.py",
    ),
    *(
        "console/ending.py",
        "console/fold.py",
        "console/lines.py",
        "console/plan.py",
        "console/reader.py",
        "console/region.py",
        "console/screen.py",
    ),
    *("workers/stop.py", "workers/orphans.py", "workers/environment.py", "agent/start_order.py"),
    *(
        "devices/cpulist.py",
        "devices/foreign.py",
        "devices/numa.py",
        "devices/records.py",
        "devices/visible.py",
    ),
)
WORLD = frozenset(
    "asyncio ctypes fcntl logging multiprocessing random resource secrets select selectors "
    "socket _socket subprocess tempfile threading time".split()
)
#: Of `os`, what does not depend on the world or change it.
HARMLESS_OS = frozenset({"strerror", "sep", "devnull"})


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all imported modules, in functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            assert node.module is not None
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = layer(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
    names = [name.split(".") for name in imports(path) if name.split(".")[0] == "phalanx"]

    up = [name for name in names if layer(name[1] if len(name) > 1 else "__init__") < own]

    assert not up


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path).startswith(PURE)], ids=name_of
)
def test_what_decides_does_not_touch_the_world(path: Path) -> None:
    tree = ast.parse(path.read_text())
    of_os = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert {name.split(".")[0] for name in imports(path)} & WORLD == set()
    assert of_os - HARMLESS_OS == set()
    assert calls & {"open", "print", "input"} == set()


def test_torch_is_never_imported() -> None:
    tops = [(name_of(path), name.split(".")[0]) for path in MODULES for name in imports(path)]

    assert [found for found in tops if "torch" in found[1]] == []
