"""Questions for torch, asked of the workers' interpreter in a throw-away child.

The slow way, for what no cheaper source can tell. It is the count that torchrun takes, so it is
right by definition. What torch prints while it is imported does not disturb: each line of an answer
begins with a word of ours.
"""

from __future__ import annotations

from phalanx.devices.foreign import harmless, number, quoted, shortened
from phalanx.devices.probe import ask
from phalanx.devices.records import Device
from phalanx.errors import ExitCode, StartError
from phalanx.job import MOST_WORKERS
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
    """How many "gpu", "xpu" or "auto" there are, and why torch could not be asked, if so.

    Raises StartError for a count that cannot be true.
    """
    lines, problem, _cut = _ask(python, environ, _COUNT.format(kind=_KINDS[word]))
    if not lines:
        return 0, problem or _SAID_NOTHING
    counted = number(lines[-1])
    if counted is None:
        return 0, problem or f"torch could not be asked: it counted {quoted(lines[-1])}"
    if not 0 <= counted <= MOST_WORKERS:
        raise StartError(
            f"--nproc-per-node={word}: {expression(word)} of {python} is "
            f"{shortened(lines[-1].strip())}, which is no number of devices",
            "give a number of workers instead",
            exit_code=ExitCode.UNAVAILABLE,
        )
    return counted, problem


def properties(python: str, environ: Mapping[str, str]) -> tuple[tuple[Device, ...], str]:
    """The GPUs that torch sees, in its order, and why it could not be asked, if so."""
    lines, problem, cut = _ask(python, environ, _PROPERTIES)
    if not lines:
        return (), problem or _SAID_NOTHING
    if cut or lines[-1] != "end":
        return (), problem or "torch could not be asked: part of its answer is missing"
    devices: list[Device] = []
    for line in lines[:-1]:
        pci, _, rest = line.partition(" ")
        uuid, space, name = map(harmless, rest.partition(" "))
        if not space or not _is_pci(pci):
            return (), f"torch could not be asked: its answer has {quoted(line)}"
        uuid = "" if uuid == "-" else f"GPU-{uuid}"
        devices.append(Device(len(devices), uuid, pci, name, "torch"))
    return tuple(devices), problem


def _is_pci(text: str) -> bool:
    """As `_PROPERTIES` spells it: the name of a folder is made from it."""
    domain, *rest = text.split(":")
    digits = "".join([domain, *rest]).removesuffix(".0")
    return (
        len(domain) >= 4
        and [len(part) for part in rest] == [2, 4]
        and text.endswith(".0")
        and not digits.strip("0123456789abcdef")
    )


_SAID_NOTHING = "torch could not be asked: it said nothing"


def _ask(python: str, environ: Mapping[str, str], question: str) -> tuple[list[str], str, bool]:
    """The lines of the answer, why there is none, and whether its beginning is lost."""
    answer = ask(
        [python, "-c", _START + question],
        environ,
        whom="torch",
        timeout_s=TORCH_TIMEOUT_S,
        hint="see whether `import torch` ends; or give numbers instead of asking for devices",
    )
    if answer.status.errno is not None:
        return [], f"{python} {describe(answer.status).replace('could not', 'cannot')}", False
    lines = [line[8:] for line in answer.out.split("\n") if line.startswith("phalanx ")]
    if answer.status.succeeded:
        return lines, "", answer.cut
    said = answer.err.split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    why = harmless(shortened(last)) or "it " + describe(answer.status)
    return lines, f"torch could not be asked: {why}", answer.cut
