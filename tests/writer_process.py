"""The console's writer as a process, with a test in the fork server's place and in the workers'."""

from __future__ import annotations

import _socket as net
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from harness import eventually, python_path
from phalanx.console import control
from phalanx.console.control import ControlMessage, WriterLink
from phalanx.console.plan import Source, Surroundings, _packed
from phalanx.job import Console

__all__ = ["WriterProcess", "fill"]

M = TypeVar("M", bound=ControlMessage)
#: Its arguments: the descriptor of the socket, and after how long a write makes a place a hung one.
PROGRAM = """
import _socket, sys
from phalanx.console import files, writer
files.HUNG_S = float(sys.argv[2])
writer.run_writer(_socket.socket(fileno=int(sys.argv[1])))
"""


def fill(fd: int) -> int:
    """Write lines until the pipe takes none for a while; how many octets it took."""
    os.set_blocking(fd, False)
    taken = 0
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while poll.poll(300):
        try:
            taken += os.write(fd, b"0123456\n" * 512)
        except BlockingIOError:
            continue
    return taken


class WriterProcess:
    """Use as a context manager. `worker[local rank, name]` is what that worker would write to."""

    def __init__(
        self,
        *sources: Source,
        same_file: bool = False,
        columns: int = 80,
        log_max_size: int | None = None,
        hung_s: float = 5.0,
        tail: Sequence[Any] = (),
        **popen: Any,
    ) -> None:
        ours, theirs = net.socketpair(net.AF_UNIX, net.SOCK_SEQPACKET)
        self.link = WriterLink(ours)
        self._sources = sources
        self._around = Surroundings(same_file=same_file, columns=columns)
        self._console = Console(log_max_size=log_max_size)
        self.worker: dict[tuple[int, str], int] = {}
        self.heard: list[ControlMessage] = []
        popen.setdefault("stdin", subprocess.DEVNULL)
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), str(hung_s)],
            pass_fds=[theirs.fileno()],
            env=os.environ | python_path(),
            **popen,
        )
        theirs.close()
        if sources:
            self.begin_round()

    def __enter__(self) -> WriterProcess:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.wait()
        self.let_workers_go()
        self.link.close()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    # In the fork server's place

    def begin_round(self, *, ends: Sequence[tuple[int, int]] = ()) -> None:
        """With pipes, or with these (theirs to read, the worker's to write)."""
        keys = [(source.local_rank, source.name) for source in self._sources]
        pairs = ends or [os.pipe() for _ in keys]
        self.worker = {key: write for key, (_read, write) in zip(keys, pairs, strict=True)}
        handed = [(*key, read) for key, (read, _write) in zip(keys, pairs, strict=True)]
        self.link.begin_round(_packed(self._sources, self._console, self._around), handed)
        for _read, (*_key, fd) in enumerate(handed):
            os.close(fd)

    def order(self, *messages: ControlMessage) -> None:
        for message in messages:
            self.link.send(message)

    def hears(self, kind: type[M], timeout: float = 20.0) -> M:
        """The next message of this kind."""

        def find() -> M | None:
            self.heard += self.link.receive()[0]
            found = next((each for each in self.heard if isinstance(each, kind)), None)
            assert found or self.process.returncode is None, "the writer has ended"
            self.process.poll()
            return found

        found = eventually(find, timeout, kind.__name__)
        self.heard.remove(found)
        return found

    def end_round(self, failed: tuple[int, ...] = ()) -> control.Tails:
        self.order(control.EndRound(failed))
        return self.hears(control.Tails)

    def finish(self) -> tuple[bytes, bytes]:
        """End it in good order; what is left of its stdout and stderr."""
        self.order(control.Finish(report_follows=False))
        return self.rest()

    def rest(self, timeout: float = 20.0) -> tuple[bytes, bytes]:
        """All that comes until it has ended, well."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        return out, err

    # In the place of workers, and of who reads

    def let_workers_go(self) -> None:
        for fd in self.worker.values():
            os.close(fd)
        self.worker = {}

    def write(self, local_rank: int, octets: bytes, name: str = "stdout") -> None:
        assert os.write(self.worker[local_rank, name], octets) == len(octets)

    def reads(self, enough: bytes, timeout: float = 20.0) -> bytes:
        """What comes on stdout, until it has this in it."""
        assert self.process.stdout is not None
        return read_until(self.process.stdout.fileno(), enough, timeout)

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_idle(self, seconds: float = 0.5) -> bool:
        """It uses a small part of the time, if of so short a time one can tell."""
        before = self.cpu_s()
        select.select((), (), (), seconds)
        return self.cpu_s() - before < seconds / 2

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def read_until(fd: int, enough: bytes, timeout: float = 20.0) -> bytes:
    deadline, got = time.monotonic() + timeout, b""
    while enough not in got:
        left = deadline - time.monotonic()
        assert left > 0, f"{enough!r} is not in {got!r}"
        if select.select((fd,), (), (), left)[0]:
            piece = os.read(fd, 65536)
            assert piece, f"ended; {enough!r} is not in {got!r}"
            got += piece
    return got
