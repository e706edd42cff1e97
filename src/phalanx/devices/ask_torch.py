"""Questions for torch, asked of the workers' interpreter in a throw-away child.

The slow way, for what no cheaper source can tell. It is the count that torchrun takes, so it is
right by definition. What torch prints while it is imported does not disturb: each line of an answer
begins with a word of ours.
"""

from __future__ import annotations

from phalanx.devices.probe import ask
from phalanx.devices.records import Device
from phalanx.report.words import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TORCH_TIMEOUT_S", "count", "expression", "properties"]

#: An import over a network's file system can take a minute; a question is not to wait for ever.
TORCH_TIMEOUT_S = 180.0

#: The current directory may hold something called torch that is not what workers import.
_START = "import sys; sys.path[:] = filter(None, sys.path); import torch\n"
_KINDS = {"gpu": "cuda", "xpu": "xpu", "auto": "accelerator"}
_COUNT = "d = torch.{kind}; print('phalanx', d.device_count() if d.is_available() else 0)\n"
_PROPERTIES = """
d = torch.cuda
for i in range(d.device_count() if d.is_available() else 0):
    p = d.get_device_properties(i)
    place = '%04x:%02x:%02x.0' % (p.pci_domain_id, p.pci_bus_id, p.pci_device_id)
    print('phalanx', place, getattr(p, 'uuid', '-'), p.name)
print('phalanx', 'end')
"""


def expression(word: str) -> str:
    """What is asked for "gpu", "xpu" or "auto", for people."""
    return f"torch.{_KINDS[word]}.device_count()"


def count(python: str, environ: Mapping[str, str], word: str) -> tuple[int, str]:
    """How many "gpu", "xpu" or "auto" there are, and why torch could not be asked, if so."""
    lines, problem = _ask(python, environ, _COUNT.format(kind=_KINDS[word]))
    try:
        return int(lines[-1]), problem
    except (IndexError, ValueError):
        return 0, problem or "torch could not be asked: it said nothing"


def properties(python: str, environ: Mapping[str, str]) -> tuple[tuple[Device, ...], str]:
    """The GPUs that torch sees, in its order, and why it could not be asked, if so."""
    lines, problem = _ask(python, environ, _PROPERTIES)
    if "end" not in lines:
        return (), problem or "torch could not be asked: it said nothing"
    rows = (line.split(" ", 2) for line in lines if line != "end")
    devices = (
        Device(index, "" if uuid == "-" else f"GPU-{uuid}", pci, name, "torch")
        for index, (pci, uuid, name) in enumerate(rows)
    )
    return tuple(devices), problem


def _ask(python: str, environ: Mapping[str, str], question: str) -> tuple[list[str], str]:
    answer = ask(
        [python, "-c", _START + question],
        environ,
        whom="torch",
        timeout_s=TORCH_TIMEOUT_S,
        hint="see whether `import torch` ends; or give numbers instead of asking for devices",
    )
    if answer.status.errno is not None:
        return [], f"{python} {describe(answer.status).replace('could not', 'cannot')}"
    lines = [line[8:] for line in answer.out.splitlines() if line.startswith("phalanx ")]
    if answer.status.succeeded:
        return lines, ""
    said = answer.err.split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    return lines, f"torch could not be asked: {last or 'it ' + describe(answer.status)}"
