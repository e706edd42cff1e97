"""What the way through phalanx costs output: 4 workers print as fast as they can.

    python benchmarks/console.py [--quick] [--only NAME ...]

The same four programs print into one `cat`, started by hand, and through phalanx; what either
prints goes to the same kind of place. The figure is octets per second, against those of `cat`.
Runs are interleaved; figures are medians, in brackets the least and the greatest.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
import time
import tty
from collections.abc import Callable, Sequence
from pathlib import Path

from common import Figure, Launcher, launchers, machine

WORKERS = 4
LINE = 100
PROGRAM = Path(__file__).parent.parent / "tests" / "programs" / "shout.py"


class Sink:
    """Where the last program of a run writes to."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder

    def __enter__(self) -> int:
        self._reader: subprocess.Popen[bytes] | None = None
        if self._kind == "file":
            self._fd = os.open(self._folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        elif self._kind == "pipe":
            read_end, self._fd = os.pipe()
            self._reader = subprocess.Popen(["cat"], stdin=read_end, stdout=subprocess.DEVNULL)
            os.close(read_end)
        else:
            self._master, self._fd = pty.openpty()
            tty.setraw(self._fd)  # no translation: that costs both sides alike
            self._reader = subprocess.Popen(
                ["cat"], stdin=self._master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        return self._fd

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        if self._kind == "pty":
            os.close(self._master)
        if self._reader is not None:
            self._reader.wait(60)


def by_hand(lines: int, sink: int) -> None:
    """Four programs into one pipe, with a `cat` at its end."""
    read_end, write_end = os.pipe()
    cat = subprocess.Popen(["cat"], stdin=read_end, stdout=sink)
    os.close(read_end)
    programs = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(lines)],
            stdout=write_end,
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(WORKERS)
    ]
    os.close(write_end)
    codes = [program.wait() for program in programs]
    assert [*codes, cat.wait()] == [0] * (WORKERS + 1), codes


def by_hand_on_terminals(lines: int, sink: int) -> None:
    """Four programs, each on a terminal with a `cat` behind it: what terminals cost alone."""
    running = []
    for rank in range(WORKERS):
        master, slave = pty.openpty()
        tty.setraw(slave)
        running.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(lines)],
                stdout=slave,
                env={**os.environ, "RANK": str(rank)},
            )
        )
        os.close(slave)
        cat = subprocess.Popen(["cat"], stdin=master, stdout=sink, stderr=subprocess.DEVNULL)
        running.append(cat)
        os.close(master)
    for process in running:
        process.wait()


def through(side: Launcher, *options: str) -> Callable[[int, int], None]:
    """The same, started by a launcher."""

    def run(lines: int, sink: int) -> None:
        argv = (*side.argv, f"--nproc-per-node={WORKERS}", *options, str(PROGRAM), str(lines))
        subprocess.run(argv, stdout=sink, check=True)

    return run


def rate(run: Callable[[int, int], None], lines: int, kind: str, folder: Path) -> float:
    """MiB a second, from the start of the first program to the end of the last."""
    with Sink(kind, folder) as sink:
        began_s = time.monotonic()
        run(lines, sink)
        taken_s = time.monotonic() - began_s
    return WORKERS * lines * LINE / taken_s / (1 << 20)


def measure(kind: str, sides: Sequence[Launcher], lines: int, runs: int, folder: Path) -> str:
    """A line of the table."""
    ways = {"cat": by_hand, "phalanx": through(sides[0], "--log-dir", str(folder / "logs"))}
    if kind == "pty":
        ways["terminals"] = by_hand_on_terminals
    values: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, run in ways.items():
            values[name].append(rate(run, lines, kind, folder))
    figures = {name: Figure(tuple(found), "MiB/s") for name, found in values.items()}
    ours, theirs = figures["phalanx"], figures["cat"]
    ratio = ours.median / theirs.median
    what = f"{WORKERS} x {lines:,} lines of {LINE} octets to a {kind}"
    row = f"{what:48} phalanx {ours}  one cat {theirs}  ratio {ratio:.2f} (least 0.7, aim 0.9)"
    if "terminals" in figures:
        limit = figures["terminals"]
        row += f"\n{'':48} a cat per terminal {limit}  ratio {ours.median / limit.median:.2f}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the lines, fewer runs")
    kinds = ("pipe", "file", "pty")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, metavar="NAME")
    options = parser.parse_args()
    lines, runs = (100_000, 3) if options.quick else (1_000_000, 5)
    sides = launchers()
    print(f"{sides[0].title}; {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.only:
            print(measure(kind, sides, lines, runs, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
