"""What the benchmarks share: launchers, figures with their spread, a look into /proc, the table.

Standard library only, so that a benchmark runs wherever phalanx does.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = [
    "Figure",
    "Job",
    "Launcher",
    "Row",
    "bare",
    "cpu_s",
    "eventually",
    "launchers",
    "machine",
    "markdown",
    "peak_rss_mib",
    "pss_mib",
    "report",
    "running",
]

LIMIT_S = 60.0  #: of anything that is waited for


@dataclass(frozen=True)
class Launcher:
    """Something that takes torchrun's command line."""

    name: str
    version: str
    argv: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def launchers() -> list[Launcher]:
    """phalanx as installed for this interpreter, then torchrun if it is there too."""
    found = [_launcher("phalanx", "phalanx", "phalanx")]
    try:
        found.append(_launcher("torchrun", "torch", "torch.distributed.run"))
    except importlib.metadata.PackageNotFoundError:
        pass
    return found


def _launcher(command: str, distribution: str, module: str) -> Launcher:
    """By its console command, which is what people type; by `-m` where there is none."""
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if distribution != "phalanx":
            raise
        from phalanx import __version__

        version = f"{__version__} (source)"
    script = Path(sys.executable).parent / command
    argv = (str(script),) if script.exists() else (sys.executable, "-m", module)
    return Launcher(command, version, argv)


def bare(script: Path, count: int = 4) -> tuple[str, ...]:
    """A command that starts `count` interpreters by hand and waits for them."""
    one = f'"{sys.executable}" -u "{script}" &'
    return ("/bin/sh", "-c", f"{one * count} wait")


# Figures


@dataclass(frozen=True)
class Figure:
    """Measured values of one thing, in one unit."""

    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        number = _number
        if len(self.values) == 1:
            return f"{number(self.values[0])} {self.unit}"
        spread = f"{number(min(self.values))} .. {number(max(self.values))}"
        return f"{number(self.median)} {self.unit} ({spread})"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Row:
    """One line of the table. `compared` is what least and aim are held against."""

    what: str
    ours: Figure
    theirs: Figure | None = None
    note: str = ""
    compared: float | None = None
    compared_unit: str = ""
    least: float | None = None
    aim: float | None = None

    @property
    def reached(self) -> str:
        if self.compared is None or self.least is None:
            return ""
        if self.compared > self.least:
            return "NO"
        if self.aim is None:
            return "yes"
        return "aim" if self.compared <= self.aim else "least"


def markdown(rows: Sequence[Row], ours: str, theirs: str) -> str:
    """The table; each figure is the median and, in brackets, the least and the greatest."""
    lines = [
        f"| | {ours} | {theirs} | compared | least | aim | reached |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        unit = row.compared_unit

        def bound(value: float | None, unit: str = unit) -> str:
            return "" if value is None else f"{_number(value)}{unit}"

        other = row.note if row.theirs is None else f"{row.theirs} {row.note}".strip()
        cells = [row.what, str(row.ours), other, bound(row.compared), bound(row.least)]
        lines.append(f"| {' | '.join([*cells, bound(row.aim), row.reached])} |")
    return "\n".join(lines)


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    python = ".".join(map(str, sys.version_info[:3]))
    kernel = os.uname().release
    return f"{os.cpu_count()} CPUs, Python {python}, Linux {kernel}, load before {load}"


def report(rows: Sequence[Row], path: str | None, **facts: str) -> None:
    """Write the figures as JSON, all values included."""
    if path is None:
        return
    lines = [{**asdict(row), "reached": row.reached} for row in rows]
    text = json.dumps({"format": 1, **facts, "rows": lines}, indent=2)
    Path(path).write_text(text + "\n")


# Running


@dataclass
class Job:
    """A launcher that runs, known by a mark that all its processes inherit."""

    process: subprocess.Popen[bytes]
    mark: bytes
    _known: set[int] = field(default_factory=set)

    def processes(self) -> dict[int, str]:
        """Pid and command line of all living processes of the job."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                if self.mark not in Path(f"/proc/{name}/environ").read_bytes():
                    continue
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if command:
                found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def own(self) -> dict[str, int]:
        """The launcher's own processes by what they are: agent, fork server, store, writer."""
        found = {"agent": self.process.pid}
        for pid, command in self.processes().items():
            if command in ("phalanx fork server", "phalanx store", "phalanx writer"):
                found[command.removeprefix("phalanx ")] = pid
        return found

    def seconds_until_gone(self, limit_s: float) -> float | None:
        """From now until no process that lives now is left; None if some outlive the limit."""
        started_s = time.monotonic()
        waiting = {os.pidfd_open(pid) for pid in self.processes()}
        try:
            poll = select.poll()
            for handle in waiting:
                poll.register(handle, select.POLLIN)
            os.kill(self.process.pid, signal.SIGKILL)
            left = set(waiting)
            while left:
                rest_s = limit_s - (time.monotonic() - started_s)
                ended = poll.poll(rest_s * 1000) if rest_s > 0 else []
                if not ended:
                    return None
                for handle, _ in ended:
                    poll.unregister(handle)
                    left.discard(handle)
            return time.monotonic() - started_s
        finally:
            for handle in waiting:
                os.close(handle)

    def end(self) -> None:
        """Kill everything, and again until nothing is left."""
        for _ in range(1000):
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait()


@contextmanager
def running(argv: Sequence[str | Path], **environment: str) -> Iterator[Job]:
    """Start a command; at the end nothing of it is left. What it prints is not shown."""
    value = uuid.uuid4().hex
    process = subprocess.Popen(
        [str(word) for word in argv],
        env={**os.environ, **environment, "BENCHMARK_MARK": value},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    job = Job(process, f"BENCHMARK_MARK={value}".encode())
    try:
        yield job
    finally:
        job.end()


def eventually(look: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until `look` is true."""
    deadline_s = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


# What /proc knows


def pss_mib(pid: int) -> float:
    """Proportional set size: shared pages are divided among those that share them."""
    return _kib(f"/proc/{pid}/smaps_rollup", "Pss:") / 1024


def peak_rss_mib(pid: int) -> float:
    return _kib(f"/proc/{pid}/status", "VmHWM:") / 1024


def _kib(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise SystemExit(f"no {name} in {path}")


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process. Not from `stat`, whose ticks are 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
