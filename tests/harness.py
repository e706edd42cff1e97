"""Run phalanx as a user would, and see everything that it starts.

Each run carries a mark in its environment, which all that it starts inherits; so the harness can
list every process of a run, whoever its parent is by then, and say what was left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

PROGRAMS = Path(__file__).parent / "programs"
PHALANX = (sys.executable, "-m", "phalanx")
#: Whole-second promises are asserted at three times their value.
SLACK = 3.0

T = TypeVar("T")


def eventually(look: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
    """The first true answer of `look`, asked again and again; AssertionError after `timeout` s."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or look}")
        pause.wait(0.01)


def python_path() -> dict[str, str]:
    """PYTHONPATH as it was meant when the tests were started, for runs in other directories."""
    folders = os.environ.get("PYTHONPATH")
    if not folders:
        return {}
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders.split(os.pathsep)))}


def processes_with(mark: str) -> dict[int, str]:
    """Pid and command line of every living process whose environment holds `mark`."""
    needle = mark.encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if needle not in Path(f"/proc/{name}/environ").read_bytes():
                continue
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if state not in "ZX":
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


class Run:
    """One run of a launcher. Use as a context manager: at the end nothing of it is left."""

    def __init__(
        self,
        *words: str | Path,
        launcher: Sequence[str] = PHALANX,
        env: dict[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        **popen: Any,
    ) -> None:
        self.mark = f"PHALANX_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [*launcher, *map(str, words)],
            env={**os.environ, **python_path(), **(env or {}), name: value},
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **popen,
        )
        self.pid = self.process.pid
        self.out = b""
        self.err = b""
        self._readers = [
            threading.Thread(target=self._read, args=("out", self.process.stdout), daemon=True),
            threading.Thread(target=self._read, args=("err", self.process.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: IO[bytes]) -> None:
        while chunk := os.read(stream.fileno(), 65536):
            setattr(self, name, getattr(self, name) + chunk)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill_all()

    # What it says

    @property
    def stdout(self) -> str:
        return self.out.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.decode(errors="replace")

    def says(self, text: str, timeout: float = 20.0) -> None:
        """Wait until `text` is on stdout or stderr."""
        eventually(
            lambda: text in self.stdout or text in self.stderr,
            timeout,
            f"{text!r} on the screen; stdout {self.stdout!r}, stderr {self.stderr!r}",
        )

    # How it ends

    def wait(self, timeout: float = 60.0) -> int:
        """Exit code (negative: the signal), once everything it printed has been read."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {timeout} s: {self.processes()}\n{self.stdout}\n{self.stderr}"
            ) from None
        for reader in self._readers:
            reader.join(timeout=5)
        return code

    def signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    # What it started

    def processes(self) -> dict[int, str]:
        """All living processes of this run: pid and command line."""
        return processes_with(self.mark)

    @property
    def fork_server(self) -> int:
        """Pid of the fork server, waiting until there is one."""

        def look() -> int:
            named = (pid for pid, line in self.processes().items() if line == "phalanx fork server")
            return next(named, 0)

        return eventually(look, what="a fork server")

    def nothing_left(self, timeout: float = 2.0 * SLACK) -> None:
        """Wait until no process of this run is alive."""
        eventually(lambda: not self.processes(), timeout, f"all gone, but {self.processes()}")

    def kill_all(self) -> None:
        for _ in range(200):
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.wait(10)
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def finished(*words: str | Path, timeout: float = 60.0, **options: Any) -> Run:
    """Run to the end; `.process.returncode`, `.stdout` and `.stderr` are complete."""
    with Run(*words, **options) as run:
        run.wait(timeout)
    return run


def dumps(folder: Path) -> list[dict[str, Any]]:
    """What `programs/env_dump.py` wrote, by restart count and rank."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(
        found,
        key=lambda d: (int(d["env"]["TORCHELASTIC_RESTART_COUNT"]), int(d["env"]["RANK"])),
    )


def wait_dead(pid: int, timeout: float = 10.0) -> None:
    """Wait for the end of a process that is not ours, by its pidfd."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], timeout)[0], f"pid {pid} lives after {timeout} s"
    finally:
        os.close(handle)


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file that may not be there yet."""
    try:
        yield from path.read_text().splitlines()
    except FileNotFoundError:
        return
