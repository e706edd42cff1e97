"""What the workers' Python has installed, seen without importing it.

`import torch` takes seconds, and a laptop should not pay them to learn that it has no accelerator.
The torch that workers would import is found as the import system would find it, and its version.py
is read as text: it says for what that build was made. Accelerators of other makers come as
packages with an entry point in the group `torch.backends`, which torch loads by itself, so those
are looked for, too.
"""

from __future__ import annotations

import sys

from phalanx.devices.files import entries, text_of
from phalanx.devices.foreign import harmless, shortened
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["TorchBuild", "find_torch", "why_missing"]


class _CannotTellError(Exception):
    """Only an import could tell."""


class TorchBuild(Record):
    """For what the workers' torch was made."""

    #: False: there is no torch, and all else is empty.
    found: bool = False
    version: str = ""
    cuda: bool = False
    hip: bool = False
    xpu: bool = False
    #: The first package that adds a device of its own; empty: there is none.
    plugin: str = ""
    #: The file that says so.
    source: str = ""

    @property
    def accelerated(self) -> bool:
        """May it find a device?"""
        return bool(self.cuda or self.hip or self.xpu or self.plugin)

    @property
    def for_people(self) -> str:
        if not self.found:
            return "none"
        kinds = [kind for kind in ("cuda", "hip", "xpu") if getattr(self, kind)]
        plugin = [f"the devices of {self.plugin}"] if self.plugin else []
        return f"{self.version}, built for " + " and ".join([*(kinds or ["CPUs only"]), *plugin])


def why_missing(name: str) -> str:
    """Why our own interpreter cannot import this ("is not installed"); empty: it can."""
    try:
        return "" if _find(name) is not None else "is not installed"
    except _CannotTellError as problem:
        return f"cannot be looked for: {problem}"


def find_torch() -> TorchBuild | None:
    """The torch of our own interpreter; None if that cannot be told without importing it."""
    try:
        spec = _find("torch")
    except _CannotTellError:
        return None
    if spec is None:
        return TorchBuild()
    folders = list(spec.submodule_search_locations or ())
    if not spec.origin or len(folders) != 1:
        return None  # not the package that we know
    source = f"{folders[0]}/version.py"
    values = _assignments(text_of(source) or "")
    if not {"__version__", "cuda", "hip"} <= values.keys():
        return None
    has = {kind: values.get(kind, "None") != "None" for kind in ("cuda", "hip", "xpu")}
    version = values["__version__"].strip("'\"")
    return TorchBuild(True, version, **has, plugin=_plugin(), source=source)


def _find(name: str) -> ModuleSpec | None:
    """Where `import` would find it: on our path, or by a finder that some package has put in.

    Raises _CannotTellError if a finder fails.
    """
    from importlib.machinery import ModuleSpec, PathFinder

    try:
        spec = PathFinder.find_spec(name, _path())
        for finder in sys.meta_path:
            if spec is None and finder is not PathFinder and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, None)
    except Exception as error:  # whatever a package's finder may raise
        problem = shortened(f"{type(error).__name__}: {error}")
        raise _CannotTellError(f"a finder of imports failed ({harmless(problem)})") from None
    if spec is not None and not isinstance(spec, ModuleSpec):
        raise _CannotTellError("a finder of imports answered something else than a ModuleSpec")
    return spec


def _path() -> list[str]:
    """Without the current directory: what lies there by chance is not what workers import."""
    return [folder for folder in sys.path if folder]


def _assignments(text: str) -> dict[str, str]:
    """Names and values of lines like `cuda: Optional[str] = None`."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith((" ", "#")))
    return {name.partition(":")[0].strip(): value.strip() for name, equal, value in pairs if equal}


def _plugin() -> str:
    """A package that torch would load for its device: its folder's name, or empty."""
    for folder in _path():
        for name in entries(folder):
            if name.endswith((".dist-info", ".egg-info")):
                points = text_of(f"{folder}/{name}/entry_points.txt")
                if points is not None and "[torch.backends]" in points.replace(" ", ""):
                    return name.rpartition(".")[0]
    return ""
