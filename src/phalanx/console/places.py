"""Where output ends: the screen and the log files, each written by a thread that may stand still.

A write to a stopped terminal, or to a file server that is away, takes as long as it takes. So each
place has a thread, which does nothing but write, and a queue. Whoever fills the queue looks at
`is_full` and stops reading what leads here, until `wake` is called. What goes wrong is left in
`troubles`; nothing is raised.
"""

from __future__ import annotations

import _thread
import os
from _queue import SimpleQueue
from collections import deque
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Sink(Protocol):
        """Something to write to. `write` blocks, and raises OSError."""

        name: str

        def write(self, buffers: Sequence[bytes | memoryview]) -> None: ...


__all__ = ["LogFile", "Place", "Stream", "Trouble"]

#: Octets that wait for one place; then its sources wait.
_FULL = 1 << 18
_LOW = 1 << 17
#: Buffers of one writev; the kernel takes 1024.
_MOST_BUFFERS = 256
#: Of a log file that is put aside, so many are kept: .1 is the newest.
_KEPT = 3


class Trouble:
    """A write that failed."""

    def __init__(self, sink: Sink, error: OSError) -> None:
        self.sink = sink
        self.error = error


class Place:
    """A thread, its queue, and how far it is."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.troubles: deque[Trouble] = deque()
        self._wake = wake
        self._queue: SimpleQueue[tuple[Sink, list[bytes | memoryview], int]] = SimpleQueue()
        # Each is changed by one thread only, so none needs a lock.
        self._put = 0
        self._done = 0
        self._is_awaited = False
        #: When the write that is going on began; None: none is.
        self.busy_since: float | None = None
        _thread.start_new_thread(self._run, ())

    @property
    def waiting(self) -> int:
        """Octets that are not written yet."""
        return self._put - self._done

    @property
    def is_full(self) -> bool:
        """No more, please; `wake` will be called when there is room."""
        if self._put - self._done < _FULL:
            return False
        self._is_awaited = True
        return self._put - self._done >= _LOW  # it may have been emptied in between

    def await_done(self) -> bool:
        """Is all written? If not, `wake` will be called as it goes on."""
        self._is_awaited = True
        return self._put == self._done

    def put(self, sink: Sink, buffers: list[bytes | memoryview]) -> None:
        size = 1 + sum(map(len, buffers))  # so that an empty one counts
        self._put += size
        self._queue.put((sink, buffers, size))

    def _run(self) -> None:
        get, empty = self._queue.get, self._queue.empty
        held = None
        while True:
            sink, buffers, size = held or get()
            held = None
            while len(buffers) < _MOST_BUFFERS and not empty():
                following, more, octets = get()
                if following is not sink:
                    held = following, more, octets
                    break
                buffers = buffers + more
                size += octets
            self.busy_since = monotonic()
            try:
                sink.write(buffers)
            except OSError as error:
                self.troubles.append(Trouble(sink, error))
                self._is_awaited = True
            self.busy_since = None
            self._done += size
            if self._is_awaited and self._put - self._done < _LOW:
                self._is_awaited = False
                self._wake()


class Stream:
    """Standard output or standard error. Gone for good once nobody can read it."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        _write_all(self.fd, buffers)


class LogFile:
    """A file of one stream, put aside as .1, .2 and .3 when it has the largest size."""

    def __init__(self, path: str, max_size: int) -> None:
        self.name = path
        self._max_size = max_size
        self._fd = -1
        self._size = 0

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        if self._fd < 0:
            self._fd = os.open(self.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            self._size = os.fstat(self._fd).st_size
        if not self._max_size:
            _write_all(self._fd, buffers)
            return
        for buffer in buffers:
            self._write_some(memoryview(buffer))

    def _write_some(self, lines: memoryview) -> None:
        """Whole lines, as many as the file takes; the rest into a fresh one."""
        while lines:
            room = self._max_size - self._size
            piece = lines
            if len(lines) > room:
                piece = lines[: bytes(lines[: max(room, 0)]).rfind(b"\n") + 1]
                if not piece and not self._size:  # a line that is longer than a file
                    piece = lines[: (bytes(lines).find(b"\n") + 1) or len(lines)]
            if piece:
                _write_all(self._fd, [piece])
                self._size += len(piece)
                lines = lines[len(piece) :]
            if lines:
                self._put_aside()

    def _put_aside(self) -> None:
        for number in range(_KEPT - 1, 0, -1):
            if os.path.exists(f"{self.name}.{number}"):
                os.replace(f"{self.name}.{number}", f"{self.name}.{number + 1}")
        os.replace(self.name, f"{self.name}.1")
        self.close()
        self._fd = os.open(self.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write_all(fd: int, buffers: Sequence[bytes | memoryview]) -> None:
    left = list(buffers)
    while left:
        try:
            written = os.writev(fd, left[:1024])
        except BlockingIOError:  # somebody has made it so; it is not ours to change
            import select

            select.select((), (fd,), ())
            continue
        while left and written >= len(left[0]):
            written -= len(left[0])
            del left[0]
        if written:
            left[0] = memoryview(left[0])[written:]
