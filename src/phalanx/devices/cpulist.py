"""PURE: lists of CPUs as the kernel writes them, "0-3,8,10-11"."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["format_cpu_list", "parse_cpu_list"]

#: Linux is built for at most 8192 CPUs; a larger number is a misread file, not to be expanded.
_MOST_CPUS = 1 << 16


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list; none for an empty one. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        low, dash, high = part.partition("-")
        first, last = _number(low), _number(high if dash else low)
        if not first <= last < _MOST_CPUS:
            raise ValueError(f"not a list of CPUs: {text!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


def _number(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"not the number of a CPU: {text!r}")
    return int(digits)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest list of these CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
