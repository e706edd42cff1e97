"""The command line of each worker, and a look at it before anything is started.

`worker_argv` is pure. `check_command` looks at the file system, so that a missing script is one
line instead of N tracebacks; it starts and imports nothing of the user's.
"""

from __future__ import annotations

import os
import sys

from phalanx.errors import StartError
from phalanx.job import CommandKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.job import Command, JobSpec

__all__ = ["check_command", "fill_local_rank", "worker_argv"]

_RUN_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_path.py")


def worker_argv(command: Command, local_rank: int) -> tuple[str, ...]:
    """What to exec for one worker. `${local_rank}` is filled in, but not in a program name."""
    args = tuple(fill_local_rank(arg, local_rank) for arg in command.args)
    if command.kind is CommandKind.PROGRAM:
        return (command.target, *args)
    target = fill_local_rank(command.target, local_rank)
    match command.kind:
        case CommandKind.SCRIPT:
            return (command.python, "-u", target, *args)
        case CommandKind.MODULE:
            return (command.python, "-u", "-m", target, *args)
        case CommandKind.RUN_PATH:
            return (command.python, "-u", _RUN_PATH, target, *args)


def fill_local_rank(text: str, local_rank: int) -> str:
    """Replace `${local_rank}` and `$local_rank`; a `$$` before it, and all else, stays as it is."""
    if "$" not in text:
        return text
    number = str(local_rank)
    parts = []
    rest = text
    while True:
        head, dollar, tail = rest.partition("$")
        parts.append(head)
        if not dollar:
            return "".join(parts)
        if tail.startswith("$"):
            parts.append("$$")
            rest = tail[1:]
        elif tail.startswith("{local_rank}"):
            parts.append(number)
            rest = tail[len("{local_rank}") :]
        elif tail.startswith("local_rank") and not _goes_on(tail[len("local_rank") :]):
            parts.append(number)
            rest = tail[len("local_rank") :]
        else:
            parts.append("$")
            rest = tail


def _goes_on(tail: str) -> bool:
    """Does the name go on, as in `$local_ranks`?"""
    return bool(tail) and tail[0].isascii() and (tail[0].isalnum() or tail[0] == "_")


def check_command(spec: JobSpec) -> None:
    """Raise StartError if what should run is plainly not there. Local ranks may differ in it."""
    command = spec.command
    if command.kind is CommandKind.PROGRAM:
        _check_program(command.target)
        return
    if command.python != sys.executable:
        _check_program(command.python, what="PYTHON_EXEC")
    targets = {fill_local_rank(command.target, r): None for r in range(spec.local_world_size)}
    for target in targets:
        if command.kind is CommandKind.MODULE:
            if command.python == sys.executable:
                _check_module(target)
        elif target != "-":
            _check_script(target, as_main=command.kind is CommandKind.SCRIPT)


def _check_script(path: str, *, as_main: bool) -> None:
    try:
        if os.path.isdir(path):
            if not os.path.exists(os.path.join(path, "__main__.py")):
                raise StartError(
                    f"{path} is a directory without a __main__.py",
                    "name the script itself, or use -m for a module",
                )
            return
        with open(path, "rb"):
            pass
    except FileNotFoundError:
        raise StartError(f"there is no file {path}", _missing_hint(path, as_main)) from None
    except PermissionError:
        raise StartError(f"{path} may not be read", "check its permissions (ls -l)") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"{path} cannot be read: {reason}", "check the path") from None


def _missing_hint(path: str, as_main: bool) -> str:
    bare_name = not path.endswith(".py") and os.sep not in path
    if as_main and bare_name and ("." in path or path.isidentifier()):
        return "use -m to run a module, --no-python to run a program"
    return f"the current directory is {os.getcwd()}"


def _check_program(name: str, what: str = "the program") -> None:
    if os.sep in name:
        candidates = [name]
    else:
        candidates = [os.path.join(folder or ".", name) for folder in os.get_exec_path()]
    found = next((path for path in candidates if os.path.exists(path)), None)
    if found is None:
        where = "" if os.sep in name else " on PATH"
        raise StartError(f"{what} {name} is not found{where}", "check the name, or give its path")
    if any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in candidates):
        return
    if os.path.isdir(found):
        raise StartError(f"{found} is a directory", "name a program in it")
    raise StartError(f"{found} is not executable", f"chmod +x {found}, or leave --no-python out")


def _check_module(name: str) -> None:
    """Is there such a module, seen from the current directory? Imports none of its parents."""
    from importlib.machinery import PathFinder

    path = [os.getcwd(), *sys.path]
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise StartError(f"{name!r} is no module name", "for a file leave -m out")
    where: list[str] | None = path
    for depth in range(len(parts)):
        dotted = ".".join(parts[: depth + 1])
        spec = PathFinder.find_spec(dotted, where)
        if spec is None and depth == 0:
            spec = next(filter(None, (f.find_spec(dotted, None) for f in sys.meta_path)), None)
        if spec is None:
            raise StartError(f"there is no module {dotted}", _module_hint(dotted))
        if spec.submodule_search_locations is None or _extends_its_path(spec.origin):
            return
        where = list(spec.submodule_search_locations)


def _extends_its_path(origin: str | None) -> bool:
    """A package may look for its modules where only running it tells; then Python is asked."""
    if origin is None or not origin.endswith(".py"):
        return False
    with open(origin, "rb") as source:
        return b"__path__" in source.read()


def _module_hint(name: str) -> str:
    if name.endswith(".py") or os.path.exists(name + ".py"):
        return "for a file leave -m out"
    return "check the name, the current directory and PYTHONPATH; is it installed here?"
