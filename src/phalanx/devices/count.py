"""How many workers `--nproc-per-node` cpu, gpu, xpu or auto mean on this node.

CPUs are those this process may run on. Accelerators are counted by asking torch in a throw-away
child, so that the agent never imports it; called before the agent starts anything else.
"""

from __future__ import annotations

import os
import sys

from phalanx.errors import ExitCode, StartError

__all__ = ["count_workers"]

_QUESTION = {
    "gpu": "torch.cuda.device_count() if torch.cuda.is_available() else 0",
    "xpu": "torch.xpu.device_count() if torch.xpu.is_available() else 0",
    "auto": "torch.accelerator.device_count() if torch.accelerator.is_available() else 0",
}


def count_workers(word: str) -> int:
    """The number for one of the four words. Raises StartError if there is no such device."""
    cpus = len(os.sched_getaffinity(0))
    if word == "cpu":
        return cpus
    count = _ask_torch(_QUESTION[word])
    if count:
        return count
    if word == "auto":
        return cpus
    raise StartError(
        f"--nproc-per-node={word}: this node has no {word} that torch can use",
        "give a number, or auto to use the CPUs",
        exit_code=ExitCode.UNAVAILABLE,
    )


def _ask_torch(question: str) -> int | None:
    """The answer, or None where torch is not installed or fails to answer."""
    from subprocess import DEVNULL, PIPE, CalledProcessError, run

    python = os.environ.get("PYTHON_EXEC") or sys.executable
    program = f"import torch; print({question})"
    try:
        answer = run(
            [python, "-c", program], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, check=True
        )
        return int(answer.stdout)
    except (OSError, ValueError, CalledProcessError):
        return None
