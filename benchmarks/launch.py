"""What the launcher costs: time, memory, idle CPU, restarts; beside torchrun where that is there.

    python benchmarks/launch.py [--quick] [--json FILE] [--only NAME ...]

The runs of all sides are interleaved, so that a busy moment of the machine hits them alike. Figures
are medians, in brackets the least and the greatest. Plain Python workers: what they import
themselves is not the launcher's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import (
    Figure,
    Job,
    Launcher,
    Row,
    bare,
    cpu_s,
    eventually,
    launchers,
    machine,
    markdown,
    peak_rss_mib,
    pss_mib,
    report,
    running,
)

WORKERS = 4
#: Its first act is its stamp, its last one is to wait for ever; rank 0 talks to the store.
IDLE = """
import os, signal, socket, time
rank = os.environ["RANK"]
if rank == "0":
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = socket.create_connection(address)
    store.sendall(bytes.fromhex("00 CE F7 85 3C"))  # VALIDATE
    store.sendall(b"\\x0d" + (7).to_bytes(4, "little"))  # PING
    assert store.recv(4)
if os.environ.get("BENCHMARK_HELPERS"):
    import subprocess
    helper = subprocess.Popen(["sleep", "1000"])
with open(os.environ["BENCHMARK_STAMPS"], "a") as stamps:
    stamps.write(f"{rank}\\n")
while True:
    signal.pause()
"""
#: Stamps of CLOCK_MONOTONIC, one per line: `restart-count rank seconds`. Rank 2 of the first group
#: dies when all of it are there.
CRASH = """
import time
started_s = time.monotonic()
import os, signal
count, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
fd = os.open(os.environ["BENCHMARK_STAMPS"], os.O_WRONLY | os.O_APPEND)
os.write(fd, f"{count} {rank} {started_s}\\n".encode())
if count == "0":
    while rank == "2":
        with open(os.environ["BENCHMARK_STAMPS"]) as stamps:
            if len(stamps.readlines()) == 4:
                os.write(fd, f"crash {rank} {time.monotonic()}\\n".encode())
                os._exit(1)
        time.sleep(0.01)
    signal.pause()
"""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    launches: int
    restarts: int
    kills: int
    idle_s: float


FULL = Plan(launches=20, restarts=10, kills=10, idle_s=20.0)
QUICK = Plan(launches=5, restarts=3, kills=3, idle_s=5.0)
#: The other side is slower and varies less: one run of its for so many of ours.
OURS_PER_THEIRS = 4


class Bench:
    """The measurements. Each is a method that returns rows of the table."""

    def __init__(self, folder: Path, plan: Plan, sides: Sequence[Launcher]) -> None:
        self._folder = folder
        self._plan = plan
        self._ours = sides[0]
        self._theirs = sides[1] if len(sides) > 1 else None
        self._stamps = folder / "stamps"

    def launch(self) -> list[Row]:
        """4 workers that do nothing, the whole command."""
        script = self._script("trivial.py", "pass\n")
        options = (f"--nproc-per-node={WORKERS}", str(script))
        values: dict[str, list[float]] = {"ours": [], "bare": [], "theirs": []}
        for turn in range(self._plan.launches):
            values["bare"].append(_seconds(bare(script, WORKERS)))
            values["ours"].append(_seconds((*self._ours.argv, *options)))
            if self._theirs and turn % OURS_PER_THEIRS == 0:
                values["theirs"].append(_seconds((*self._theirs.argv, *options)))
        figures = {side: _milliseconds(found) for side, found in values.items() if found}
        by_hand = figures["bare"].median
        ratio = figures["ours"].median / by_hand
        their_ratio = (
            f"= {figures['theirs'].median / by_hand:.3g}x" if "theirs" in figures else "not there"
        )
        name = f"{WORKERS} trivial workers, whole command"
        return [
            Row(f"{WORKERS} interpreters started by hand", figures["bare"]),
            Row(name, figures["ours"], figures.get("theirs"), their_ratio, ratio, "x", 3, 2),
        ]

    def memory(self) -> list[Row]:
        """Our processes on an idle node, once a client of the store has connected."""
        with self._idle(self._ours) as job:
            eventually(lambda: "store" in job.own(), "the store's process")
            parts = {name: pss_mib(pid) for name, pid in job.own().items()}
        rows = [Row(f"PSS of the {name}", Figure((size,), "MiB")) for name, size in parts.items()]
        theirs, note = None, "not there"
        if self._theirs:
            with self._idle(self._theirs) as job:
                theirs = Figure((pss_mib(job.process.pid),), "MiB")
                note = f"(peak RSS {peak_rss_mib(job.process.pid):.0f} MiB)"
        total = sum(parts.values())
        whole = Figure((total,), "MiB")
        name = f"memory of all own processes, {WORKERS} workers, PSS"
        return [Row(name, whole, theirs, note, total, " MiB", 45, 30), *rows]

    def idle(self) -> list[Row]:
        """CPU time while nothing happens."""
        ours = self._idle_percent(self._ours)
        theirs = self._idle_percent(self._theirs) if self._theirs else None
        name = f"idle CPU of all own processes over {self._plan.idle_s:g} s"
        row = Row(name, _percent(ours), theirs and _percent(theirs), "", ours, " %", 0.2, 0.05)
        return [row]

    def crash(self) -> list[Row]:
        """From a worker's last instant to the last rank of the new group in user code."""
        script = self._script("crash.py", CRASH)
        ours, theirs = [], []
        for turn in range(self._plan.restarts):
            ours.append(self._restart_s(self._ours, script))
            if self._theirs and turn % OURS_PER_THEIRS == 0:
                theirs.append(self._restart_s(self._theirs, script))
        figure = _milliseconds(ours)
        name = f"crash to {WORKERS} ranks in user code, plain"
        other = _milliseconds(theirs) if theirs else None
        return [Row(name, figure, other, "", figure.median, " ms", 200, 100)]

    def kill(self) -> list[Row]:
        """SIGKILL to the agent, each worker with a helper: until nothing of the job is left."""
        ours = [self._gone_s(self._ours) for _ in range(self._plan.kills)]
        if None in ours:
            raise SystemExit("processes outlived the agent")
        figure = _milliseconds([seconds for seconds in ours if seconds is not None])
        note = ""
        if self._theirs:
            note = "never" if self._gone_s(self._theirs) is None else "in time"
        name = "agent SIGKILL to all gone, helpers included"
        return [Row(name, figure, None, note, figure.median, " ms", 2000, None)]

    # Helpers

    def _script(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        return path

    def _idle(self, side: Launcher, **environment: str) -> _Idle:
        script = self._script("idle.py", IDLE)
        return _Idle(side, script, self._stamps, environment)

    def _idle_percent(self, side: Launcher) -> float:
        with self._idle(side) as job:
            time.sleep(2)  # what belongs to the start is over
            own = job.own().values()
            before_s, used_s = time.monotonic(), -sum(map(cpu_s, own))
            time.sleep(self._plan.idle_s)
            used_s += sum(map(cpu_s, own))
            return 100 * used_s / (time.monotonic() - before_s)

    def _restart_s(self, side: Launcher, script: Path) -> float:
        self._stamps.write_text("")
        options = (f"--nproc-per-node={WORKERS}", "--max-restarts=1", str(script))
        with running((*side.argv, *options), BENCHMARK_STAMPS=str(self._stamps)) as job:
            code = job.process.wait(60)
        lines = [line.split() for line in self._stamps.read_text().splitlines()]
        crashed_s = next(float(at) for kind, _, at in lines if kind == "crash")
        again_s = [float(at) for kind, _, at in lines if kind == "1"]
        if code != 0 or len(again_s) != WORKERS:
            raise SystemExit(f"{side.name} did not restart the group: exit code {code}")
        return max(again_s) - crashed_s

    def _gone_s(self, side: Launcher) -> float | None:
        with self._idle(side, BENCHMARK_HELPERS="1") as job:
            return job.seconds_until_gone(limit_s=5)


class _Idle:
    """A job whose workers are all there and wait for ever; as a context manager."""

    def __init__(
        self, side: Launcher, script: Path, stamps: Path, environment: dict[str, str]
    ) -> None:
        argv = (*side.argv, f"--nproc-per-node={WORKERS}", script)
        self._stamps = stamps
        self._running = running(argv, BENCHMARK_STAMPS=str(stamps), **environment)

    def __enter__(self) -> Job:
        self._stamps.write_text("")
        job = self._running.__enter__()
        eventually(
            lambda: len(self._stamps.read_text().splitlines()) == WORKERS, "all workers started"
        )
        return job

    def __exit__(self, *exc: object) -> None:
        self._running.__exit__(None, None, None)


def _seconds(argv: Sequence[str]) -> float:
    started_s = time.monotonic()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started_s


def _milliseconds(values_s: Sequence[float]) -> Figure:
    return Figure(tuple(1000 * value for value in values_s), "ms")


def _percent(value: float) -> Figure:
    return Figure((value,), "%")


def main() -> None:
    names = ("launch", "memory", "idle", "crash", "kill")
    parser = argparse.ArgumentParser(description="What the launcher costs, beside torchrun.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", metavar="FILE", help="write all values here, too")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    arguments = parser.parse_args()

    sides = launchers()
    titles = [side.title for side in sides] + ["torchrun: not there"]
    about = machine()
    with tempfile.TemporaryDirectory(prefix="phalanx-bench-") as folder:
        bench = Bench(Path(folder), QUICK if arguments.quick else FULL, sides)
        measures: dict[str, Callable[[], list[Row]]] = {n: getattr(bench, n) for n in names}
        rows: list[Row] = []
        for name in arguments.only:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            rows += measures[name]()
    print(f"{about}\n\n{markdown(rows, titles[0], titles[1])}")
    report(rows, arguments.json, machine=about, ours=titles[0], theirs=titles[1])


if __name__ == "__main__":
    main()
