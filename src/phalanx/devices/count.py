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
#: The current directory may hold something called torch that is not what workers import.
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); import torch; print({question})"


def count_workers(word: str) -> int:
    """The number for one of the four words. Raises StartError if there is no such device."""
    cpus = len(os.sched_getaffinity(0))
    if word == "cpu":
        return cpus
    count, problem = _ask_torch(_QUESTION[word])
    if count:
        return count
    if word == "auto":
        return cpus
    raise StartError(
        f"no {word} for --nproc-per-node={word}: {problem or 'torch finds none on this node'}",
        "give a number, or auto to use the CPUs",
        exit_code=ExitCode.UNAVAILABLE,
    )


def _ask_torch(question: str) -> tuple[int, str]:
    """The answer, and why there is none if torch could not be asked."""
    from subprocess import DEVNULL, run

    python = os.environ.get("PYTHON_EXEC") or sys.executable
    program = _PROGRAM.format(question=question)
    try:
        answer = run([python, "-c", program], stdin=DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return 0, f"{python} cannot be started: {error.strerror}"
    try:
        return int(answer.stdout.split()[-1]), ""
    except (IndexError, ValueError):
        lines = answer.stderr.decode(errors="replace").splitlines() or ["it said nothing"]
        return 0, f"torch could not be asked: {lines[-1]}"
