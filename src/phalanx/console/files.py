"""The log files of a round, and what becomes of them when their place is full, hung or read-only.

Whatever it is, it costs a line on the screen, and the job goes on. A place that has not taken a
write for some seconds is left alone, what comes is lost; once it moves again, so do the files.
"""

from __future__ import annotations

from phalanx.console.lines import prefixed
from phalanx.console.places import LogFile, Place
from phalanx.report.words import cannot_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from phalanx.console.plan import Source

__all__ = ["Files"]

#: A write that takes longer makes the place a hung one.
HUNG_S = 5.0


class Files:
    """One thread for all of them: they lie in one directory."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._place: Place | None = None
        self._files: dict[str, LogFile] = {}
        self._is_hung = False
        self._lost = 0
        self._failed = False

    def begin_round(self, sources: Iterable[Source], max_size: int) -> None:
        for source in sources:
            for path in (source.file, source.filtered_file):
                if path and path not in self._files:
                    self._files[path] = LogFile(path, max_size)
                    self._put(path, [])  # it is there, though it may stay empty

    def end_round(self) -> None:
        """Each is closed behind its last line."""
        if self._place is not None:
            for file in self._files.values():
                self._place.put(_Closing(file), [])
        self._files = {}

    @property
    def are_full(self) -> bool:
        return self._place is not None and not self._is_hung and self._place.is_full

    def are_written(self) -> bool:
        return self._place is None or self._is_hung or self._place.await_done()

    def put(self, source: Source, buffers: list[bytes | memoryview]) -> None:
        """Lines of a stream, whole but perhaps for the last."""
        self._put(source.file, buffers)
        if source.filtered_file:
            lines = b"".join(buffers).removesuffix(b"\n").split(b"\n")  # not at "\r", as of a bar
            kept = [line for line in lines if any(text in line for text in source.filters)]
            if kept:
                block = b"\n".join(kept) + b"\n"
                self._put(source.filtered_file, [prefixed(block, source.prefix)])

    def _put(self, path: str, buffers: list[bytes | memoryview]) -> None:
        if self._place is None:
            self._place = Place(self._wake)
        if self._is_hung:
            self._lost += sum(map(len, buffers))
        else:
            self._place.put(self._files[path], buffers)

    def deadline(self, now: float) -> float | None:
        """When to look after them, whatever else happens."""
        if self._place is None or (self._place.busy_since is None and not self._is_hung):
            return None
        if self._is_hung:
            return now + 1.0
        return (self._place.busy_since or now) + HUNG_S

    def look_after(self, now: float) -> Iterable[str]:
        """Lines for people, if anything has gone wrong, or has been put right."""
        place = self._place
        if place is None:
            return
        while place.troubles:
            trouble = place.troubles.popleft()
            if not self._failed:
                self._failed = True
                what = f"the log file {trouble.sink.name}"
                yield f"{cannot_write(what, trouble.error.errno or 0)}; the job goes on"
        since = place.busy_since
        if not self._is_hung and since is not None and now - since >= HUNG_S:
            self._is_hung = True
            yield "the log directory does not answer; the job goes on, and its lines are lost"
        elif self._is_hung and since is None and not place.waiting:
            self._is_hung = False
            yield f"the log directory answers again; {self._lost} octets are lost"
            self._lost = 0


class _Closing:
    """In the queue behind what is to be written before."""

    def __init__(self, file: LogFile) -> None:
        self.name = file.name
        self._file = file

    def write(self, _buffers: object) -> None:
        self._file.close()
