"""How many workers `--nproc-per-node` cpu, gpu, xpu or auto mean on this node."""

from __future__ import annotations

import os
import sys

__all__ = ["count_workers"]


def count_workers(word: str) -> int:
    """The number for one of the four words. Raises StartError if there is no such device."""
    from phalanx.devices.machine import Machine

    python = os.environ.get("PYTHON_EXEC") or sys.executable
    return Machine(os.environ, python).count_workers(word)
