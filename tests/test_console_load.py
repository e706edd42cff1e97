"""Much output: no line lost, torn or out of order, and no memory taken.

`make test` has a twentieth of it; what it costs is in benchmarks/console.py.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
import tty
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, eventually, python_path

SHOUT = PROGRAMS / "shout.py"
WORKERS = 4
COLOURS = re.compile(rb"\x1b\[[\d;]*m")
#: What stands before it in a line was a live line, and is gone.
WIPE = b"\r\x1b[K"
#: The writer may take so much more while it is under load than right after its start.
GROWTH_KIB = 5 * 1024

lines_of_each = pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)]
)


class Counter:
    """Takes octets as they come, in any pieces, and checks each line."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._rest = b""
        self._prefix = prefix
        self.next = [0] * WORKERS

    def take(self, chunk: bytes) -> None:
        whole, _, self._rest = (self._rest + chunk).rpartition(b"\n")
        if whole:
            for line in whole.split(b"\n"):
                self._check(COLOURS.sub(b"", line.rpartition(WIPE)[2]) if self._prefix else line)

    def _check(self, line: bytes) -> None:
        if self._prefix:
            shown, _, line = line.partition(b" ")
            assert shown == b"[%s]" % line[:1], line
        rank, number, _ = line.split(b":")
        assert len(line) == 99, line
        assert int(number) == self.next[int(rank)], line
        self.next[int(rank)] += 1


class Load:
    """phalanx with four workers that shout, and what watches its writer. A context manager."""

    def __init__(self, count: int, stdout: int, *options: str, **popen: object) -> None:
        words = [*PHALANX, f"--nproc-per-node={WORKERS}", *options, str(SHOUT), str(count)]
        self.process = subprocess.Popen(
            words,
            stdout=stdout,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **python_path()},
            **popen,  # type: ignore[call-overload]
        )
        self.first_kib = self.peak_kib = 0
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(10)
        self._watcher.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _watch(self) -> None:
        """The writer's resident memory, from the first look at it that finds it at work."""
        pause = threading.Event()
        while self.process.poll() is None:
            for pid in self._writer():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                found = re.search(r"VmRSS:\s+(\d+)", status)
                if found and "Threads:\t1\n" not in status:
                    self.first_kib = self.first_kib or int(found[1])
                    self.peak_kib = max(self.peak_kib, int(found[1]))
            pause.wait(0.01)

    def _writer(self) -> list[int]:
        def children(pid: int) -> list[int]:
            try:
                text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except OSError:
                return []
            return [int(word) for word in text.split()]

        found = []
        for server in children(self.process.pid):
            for pid in children(server):
                try:
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"phalanx writer"):
                        found.append(pid)
                except OSError:
                    pass
        return found

    def ends_well(self) -> None:
        assert self.process.wait(240) == 0
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        assert self.first_kib, "the writer was seen"
        assert self.peak_kib - self.first_kib < GROWTH_KIB


def read_all(fd: int, take: Callable[[bytes], None]) -> None:
    while True:
        try:
            chunk = os.read(fd, 1 << 16)
        except OSError:  # a terminal that nobody has open any more
            return
        if not chunk:
            return
        take(chunk)


@lines_of_each
@pytest.mark.timeout(300)
def test_many_lines_to_a_pipe(count: int) -> None:
    read_end, write_end = os.pipe()
    counter = Counter()
    with Load(count, write_end) as load:
        os.close(write_end)
        read_all(read_end, counter.take)
        os.close(read_end)

        load.ends_well()
    assert counter.next == [count] * WORKERS


@lines_of_each
@pytest.mark.timeout(300)
def test_many_lines_to_a_file(count: int, tmp_path: Path) -> None:
    counter = Counter()
    with (tmp_path / "out").open("w+b") as file:
        with Load(count, file.fileno()) as load:
            load.ends_well()
        file.seek(0)
        read_all(file.fileno(), counter.take)

    assert counter.next == [count] * WORKERS
    (tmp_path / "out").unlink()


@lines_of_each
@pytest.mark.timeout(300)
def test_many_lines_to_a_terminal(count: int) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    counter = Counter(b"[]")
    with Load(count, slave) as load:
        os.close(slave)
        read_all(master, counter.take)
        os.close(master)

        load.ends_well()
    assert counter.next == [count] * WORKERS


@lines_of_each
@pytest.mark.timeout(300)
def test_many_lines_to_log_files_and_the_console(count: int, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    seen = [0]

    def take(chunk: bytes) -> None:
        seen[0] += chunk.count(b"\n")

    with Load(count, write_end, "--tee=1", f"--log-dir={tmp_path}") as load:
        os.close(write_end)
        read_all(read_end, take)
        os.close(read_end)

        load.ends_well()
    assert seen[0] == WORKERS * count
    for rank in range(WORKERS):
        counter = Counter()
        path = tmp_path / "latest" / "attempt_0" / str(rank) / "stdout.log"
        counter.take(path.read_bytes())
        assert counter.next[rank] == count
        path.unlink()


def test_a_terminal_that_stands_still_holds_up_nothing_else(tmp_path: Path) -> None:
    """Rank 0 is shown and waits; the others, whose lines go to files, come to their end."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    script = tmp_path / "s.py"
    script.write_text(
        f"import os, runpy, sys\nsys.argv = ['shout.py', '20000']\nrunpy.run_path({str(SHOUT)!r})\n"
        f"open(f'{tmp_path}/done_{{os.environ[\"RANK\"]}}', 'w')"
    )
    words = ("--nproc-per-node=3", f"--log-dir={tmp_path}/logs", "--redirects=1:1,2:1", str(script))
    process = subprocess.Popen(
        [*PHALANX, *words], stdout=slave, stdin=subprocess.DEVNULL,
        env={**os.environ, **python_path()},
    )  # fmt: skip
    os.close(slave)
    try:
        eventually(lambda: all((tmp_path / f"done_{rank}").exists() for rank in (1, 2)))
        assert not (tmp_path / "done_0").exists()
        assert process.poll() is None
    finally:
        seen = bytearray()
        read_all(master, seen.extend)
        os.close(master)
    assert process.wait(60) == 0
    assert seen.count(b"0:") >= 20000
    logs = tmp_path / "logs" / "latest" / "attempt_0"
    assert (logs / "2" / "stdout.log").read_bytes().count(b"\n") == 20000
