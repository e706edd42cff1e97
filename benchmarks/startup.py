"""Where the time of a short job goes: a timeline of one command, and what the launcher imports.

    python benchmarks/startup.py [--runs 20] [--modules 12]

The timeline's instants are stamps of CLOCK_MONOTONIC taken by this program and by the workers in
their first and last lines; medians over interleaved runs, beside the same workers started by hand.
The imports are those of the agent's process, from `-X importtime`, with their own time only: a
module that is there already costs nothing. Both are for finding out what to leave out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import bare, launchers, machine

WORKERS = 4
WORKER = """
import time
first_s = time.monotonic()
import os
fd = os.open(os.environ["BENCHMARK_STAMPS"], os.O_WRONLY | os.O_APPEND)
os.write(fd, f"{first_s} {time.monotonic()}\\n".encode())
"""
INSTANTS = (
    "first worker in its first line",
    "last worker in its first line",
    "last worker in its last line",
    "the command has returned",
)


def timeline(argv: Sequence[str], stamps: Path) -> list[float]:
    """Seconds from the start of the command to each of INSTANTS."""
    stamps.write_text("")
    environment = {**os.environ, "BENCHMARK_STAMPS": str(stamps)}
    started_s = time.monotonic()
    subprocess.run(argv, check=True, env=environment, stdin=subprocess.DEVNULL)
    returned_s = time.monotonic()
    rows = [list(map(float, line.split())) for line in stamps.read_text().splitlines()]
    first_s, last_s = [row[0] for row in rows], [row[1] for row in rows]
    instants_s = (min(first_s), max(first_s), max(last_s), returned_s)
    return [instant_s - started_s for instant_s in instants_s]


def print_timeline(script: Path, stamps: Path, runs: int) -> None:
    commands = {
        "by hand": bare(script, WORKERS),
        "phalanx": (*launchers()[0].argv, f"--nproc-per-node={WORKERS}", str(script)),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, argv in commands.items():
            found[name].append(timeline(argv, stamps))
    print(f"| ms from the start of the command | {' | '.join(commands)} |")
    print("| --- | --- | --- |")
    for number, instant in enumerate(INSTANTS):
        medians = (1000 * statistics.median(run[number] for run in runs) for runs in found.values())
        print(f"| {instant} | {' | '.join(f'{median:.1f}' for median in medians)} |")


def imports(script: Path) -> list[tuple[str, float]]:
    """(module, own milliseconds) of all that the agent's process imports, in order."""
    argv = [sys.executable, "-X", "importtime", "-m", "phalanx", "--nproc-per-node=1", str(script)]
    shown = subprocess.run(
        argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    ).stderr
    found = []
    for line in shown.splitlines():
        if line.startswith("import time:") and "|" in line and "self [us]" not in line:
            own_us, _, module = line.removeprefix("import time:").split("|")
            found.append((module.strip(), int(own_us) / 1000))
    return found


def print_imports(script: Path, count: int) -> None:
    """Against an interpreter that does nothing, which imports some modules too."""
    base_argv = [sys.executable, "-X", "importtime", "-c", "pass"]
    base = subprocess.run(base_argv, capture_output=True, text=True).stderr
    there = {line.rpartition("|")[2].strip() for line in base.splitlines()}
    added = [(module, own_ms) for module, own_ms in imports(script) if module not in there]
    ours = [own_ms for module, own_ms in added if module.startswith("phalanx")]
    others = [own_ms for module, own_ms in added if not module.startswith("phalanx")]
    print(f"own modules: {len(ours)} in {sum(ours):.1f} ms")
    print(f"others, beyond those of a bare interpreter: {len(others)} in {sum(others):.1f} ms")
    for module, own_ms in sorted(added, key=lambda row: -row[1])[:count]:
        print(f"{own_ms:8.2f} ms  {module}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of a short job goes.")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--modules", type=int, default=12, help="how many imports are listed")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        print_timeline(script, Path(folder) / "stamps", arguments.runs)
        print()
        trivial = Path(folder) / "trivial.py"
        trivial.write_text("pass\n")
        print_imports(trivial, arguments.modules)


if __name__ == "__main__":
    main()
