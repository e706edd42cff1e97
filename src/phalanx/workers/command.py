"""The command line of each worker, and a look at it before anything is started.

`worker_argv` is pure. `check_command` looks at the file system, so that a missing script is one
line instead of N tracebacks; it starts and imports nothing of the user's.
"""

from __future__ import annotations

import os
import sys
from stat import S_ISREG

from phalanx.errors import StartError
from phalanx.job import CommandKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

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
        _check_interpreter(command.python)
    for target in _targets(command.target, spec.local_world_size):
        if command.kind is CommandKind.MODULE:
            if command.python == sys.executable:
                _check_module(target)
        elif target != "-":
            _check_script(target, as_main=command.kind is CommandKind.SCRIPT)


def _targets(target: str, local_world_size: int) -> Iterable[str]:
    if "$" not in target:
        return (target,)
    return {fill_local_rank(target, local_rank): None for local_rank in range(local_world_size)}


def _check_script(path: str, *, as_main: bool) -> None:
    try:
        if os.path.isdir(path):
            if not os.path.exists(os.path.join(path, "__main__.py")):
                raise StartError(
                    f"{path} is a directory without a __main__.py",
                    "name the script itself, or use -m for a module",
                )
            return
        # What is no file is for Python alone: to open a named pipe is to take what is in it.
        if S_ISREG(os.stat(path).st_mode):
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        raise StartError(f"there is no file {path}", _missing_hint(path, as_main)) from None
    except PermissionError:
        raise StartError(f"{path} may not be read", "check its permissions (ls -l)") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"{path} cannot be read: {reason}", "check the path") from None


def _missing_hint(path: str, as_main: bool) -> str:
    if as_main and os.path.basename(path).rstrip("0123456789.") == "python":
        return "leave it out: the workers are run with Python anyway"
    if os.path.isfile(f"{path}.py"):
        return f"did you mean {path}.py?"
    near = _near(path)
    if near:
        return f"did you mean {near}?"
    bare_name = not path.endswith(".py") and os.sep not in path
    if as_main and bare_name and ("." in path or path.isidentifier()):
        return "use -m to run a module, --no-python to run a program"
    try:
        return f"the current directory is {os.getcwd()}"
    except OSError:
        return "the current directory has been removed"


def _near(path: str) -> str:
    """A script in the same folder whose name is nearly this; empty if there is none."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        there = [entry for entry in os.listdir(folder or ".") if entry.endswith(".py")]
    except OSError:
        return ""
    close = get_close_matches(name, there[:1000], n=1, cutoff=0.75)
    return os.path.join(folder, close[0]) if close else ""


def _check_interpreter(name: str) -> None:
    hint = "set PYTHON_EXEC to the workers' interpreter, or unset it"
    found = _find_program(name)
    if found is None:
        raise StartError(f"PYTHON_EXEC is {name}, which is not there", hint)
    if not _is_executable(found):
        raise StartError(f"PYTHON_EXEC is {name}, which is not executable", hint)


def _check_program(name: str) -> None:
    found = _find_program(name)
    if found is None:
        where = "" if os.sep in name else " on PATH"
        here = os.sep not in name and os.path.exists(name)
        hint = (
            f"for the one in this directory write ./{name}"
            if here
            else "check the name, or give its path"
        )
        raise StartError(f"there is no program {name}{where}", hint)
    if os.path.isdir(found):
        raise StartError(f"{found} is a directory", "name a program in it")
    if not _is_executable(found):
        raise StartError(
            f"{found} is not executable", f"chmod +x {found}, or leave --no-python out"
        )
    interpreter = _named_in_first_line(found)
    if interpreter and not os.path.exists(interpreter):
        raise StartError(
            f"{found} asks for {interpreter}, which is not there", "correct its first line (#!)"
        )


def _find_program(name: str) -> str | None:
    """Where it is, looked up on PATH as exec does; if none can be executed, one that cannot be."""
    if os.sep in name:
        return name if os.path.exists(name) else None
    paths = [os.path.join(folder or ".", name) for folder in os.get_exec_path()]
    there = [path for path in paths if os.path.exists(path)]
    return next(filter(_is_executable, there), there[0] if there else None)


def _is_executable(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)


def _named_in_first_line(path: str) -> str:
    """The interpreter that a script names after `#!`; empty if it is none, or cannot be read."""
    try:
        if not S_ISREG(os.stat(path).st_mode):
            return ""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""  # a program may be executable and not readable
    try:
        first_line, newline, _ = os.read(fd, 256).partition(b"\n")
    except OSError:
        return ""
    finally:
        os.close(fd)
    if not newline or not first_line.startswith(b"#!"):
        return ""
    words = os.fsdecode(first_line[2:]).strip(" \t").split(" ")
    return words[0].split("\t")[0]


def _check_module(name: str) -> None:
    """Is there such a module, seen from the current directory? Imports none of its parents.

    Whatever cannot be told without importing something is left to Python.
    """
    try:
        problem = _module_problem(name)
    except Exception:
        return  # a finder that needs the parent imported: a namespace package in another one
    if problem is not None:
        raise StartError(*problem)


def _module_problem(name: str) -> tuple[str, str] | None:
    """Why `python -m name` would not find it, and what to do; None if nothing is known against it.

    Raises whatever a finder raises.
    """
    where: list[str] | None = None
    parts = name.split(".")
    if not all(parts):
        return f"{name!r} is no module name", _hint(name)
    for depth in range(len(parts)):
        dotted = ".".join(parts[: depth + 1])
        if depth and where is None:
            return f"{'.'.join(parts[:depth])} is a module, so there is no {name}", _hint(name)
        spec = _find_module(dotted, where)
        if spec is None:
            return f"there is no module {dotted}", _hint(name)
        if _extends_its_path(spec.origin):
            return None
        places = spec.submodule_search_locations
        where = None if places is None else list(places)
    if where is not None and _find_module(f"{name}.__main__", where) is None:
        return f"{name} is a package without a __main__", f"name a module in it: {name}.MODULE"
    return None


def _find_module(dotted: str, where: list[str] | None) -> ModuleSpec | None:
    from importlib.machinery import PathFinder

    if where is None and (spec := PathFinder.find_spec(dotted, [_cwd(), *sys.path])):
        return spec
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        found: ModuleSpec | None = find_spec(dotted, where) if find_spec is not None else None
        if found is not None:
            return found
    return None


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _extends_its_path(origin: str | None) -> bool:
    """A package may look for its modules where only running it tells; then Python is asked."""
    if origin is None or not origin.endswith("__init__.py"):
        return False
    with open(origin, "rb") as source:
        return b"__path__" in source.read()


def _hint(name: str) -> str:
    if name.endswith(".py"):
        return "for a file leave -m out, for a module leave .py out"
    return "check the name, the current directory and PYTHONPATH; is it installed here?"
