"""The writer: the process that reads what workers write, and puts it on the screen and into files.

Its loop reads, and never writes anything that could block: that is done by a thread for each place
(`places`). A source whose place has enough to do is left unread; its worker waits then, and nobody
else. What a worker has written is complete when the worker is dead and its pipe is empty, not at
the pipe's end: a helper of it may hold that open for long.

It ends when it is told to and all is written, or, should the fork server be gone, a second later.
"""

from __future__ import annotations

import os
import select
from time import monotonic

from phalanx.console import control
from phalanx.console.control import WriterLink
from phalanx.console.display import Display, displays
from phalanx.console.ending import Ending
from phalanx.console.files import Files
from phalanx.console.plan import Source, unpack
from phalanx.console.reader import Reader
from phalanx.report.words import cannot_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as net
    from collections.abc import Iterable
    from typing import NoReturn

    from phalanx.console.plan import Facts
    from phalanx.console.relay import Relay

__all__ = ["run_writer"]

_CHUNK = 1 << 16
#: Of what a pipe holds at the end of its worker; a helper may go on writing for ever.
_MOST_AT_END = 1 << 20
#: To tell the fork server the last, should it be slow to read.
_SAY_S = 1.0
_EIO = 5
_EPIPE = 32


def run_writer(sock: net.socket) -> NoReturn:
    """Be the writer; `sock` is our end of the socket pair."""
    Writer(WriterLink(sock)).run()


class Writer:
    """The whole of the process."""

    def __init__(self, link: WriterLink) -> None:
        self._link = link
        self._poll = select.poll()
        self._wake_fd, self._waker = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._waker, False)
        self._facts: Facts | None = None
        self._displays: dict[int, Display] = {}
        self._files = Files(self._wake)
        self._planned: dict[tuple[int, str], Source] = {}
        self._readers: dict[int, Reader] = {}  #: by descriptor
        self._fds: dict[tuple[int, str], int] = {}
        self._paused: set[int] = set()
        self._redrawing: set[Reader] = set()
        self._broken: set[int] = set()
        self._relay: Relay | None = None
        self._tails: dict[int, bytes] = {}
        self._turns = 0
        self._ending = Ending()
        self._warned: set[str] = set()

    def run(self) -> NoReturn:
        self._poll.register(self._link.fileno(), select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)
        while not self._is_done(monotonic()):
            self._turn()
        self._release_keyboard()
        self._link.send(control.AllPrinted())
        until = monotonic() + _SAY_S
        while self._link.wants_write and monotonic() < until:
            select.select((), (self._link.fileno(),), (), _SAY_S)
            self._link.flush()
        os._exit(0)

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"!")
        except BlockingIOError:
            pass  # it will wake up anyway

    # The loop

    def _turn(self) -> None:
        ready = self._poll.poll(self._wait_ms())
        self._turns += 1
        first = self._turns % len(ready) if ready else 0
        for fd, events in ready[first:] + ready[:first]:  # nobody is always served last
            if fd == self._link.fileno():
                self._link.flush()
                self._hear()
            elif fd == self._wake_fd:
                os.read(self._wake_fd, 4096)
                self._go_on()
            elif fd in self._readers:
                self._ready(fd, events)
            elif self._relay is not None and fd == 0:
                self._relay.keys()
                self._watch(self._relay.master)
        now = monotonic()
        self._look_after(now)
        self._flush(now)
        if not self._ending.is_alone:
            answers = select.POLLOUT if self._link.wants_write else 0
            self._poll.modify(self._link.fileno(), select.POLLIN | answers)

    def _wait_ms(self) -> float | None:
        now = monotonic()
        instants = [
            *(display.deadline for display in self._displays.values()),
            *(reader.deadline for reader in self._redrawing),
            self._files.deadline(now),
            *self._ending.instants(now),
        ]
        due = [at for at in instants if at is not None]
        return max(0.0, (min(due) - now) * 1000 + 1) if due else None

    def _flush(self, now: float, *, last: bool = False) -> None:
        readers = list(self._readers.values())
        for display in set(self._displays.values()):
            display.flush(readers, now, last=last)

    def _is_done(self, now: float) -> bool:
        if self._ending.stops_reading(now, may_come=bool(self._readers)):
            self._close_all()
        if not self._ending.is_near:
            return False
        return self._ending.is_overdue(now) or self._is_written(now)

    def _is_written(self, now: float) -> bool:
        waiting = [d for d in self._displays.values() if not d.place.await_done()]  # ask each
        if waiting:
            return False
        return self._files.are_written() or self._ending.files_are_late(now)

    # Orders

    def _hear(self) -> None:
        messages, there = self._link.receive()
        for message in messages:
            self._obey(message)
        if not there:
            self._poll.unregister(self._link.fileno())
            self._ending.alone(monotonic())
            self._release_keyboard()

    def _obey(self, message: control.ControlMessage) -> None:
        match message:
            case control.BeginRound(plan):
                self._begin_round(plan)
            case control.TakeSources(keys):
                for key, fd in zip(keys, self._link.take_fds(len(keys)), strict=False):
                    self._take_source(key, fd)
            case control.WorkerGone(local_rank):
                self._worker_gone(local_rank)
            case control.EndRound(failed):
                self._end_round(failed)
            case control.SayLine(text):
                self._displays[2].say(text)
            case control.Resize(columns, rows):
                self._resize(columns, rows)
            case control.Finish(report_follows):
                self._finish(report_follows=report_follows)
            case control.ReleaseKeyboard():
                self._release_keyboard()
            case control.Hurry():
                self._ending.hurry(monotonic())
            case _:
                pass

    def _begin_round(self, packed: bytes) -> None:
        self._facts, sources = unpack(packed)
        if not self._displays:
            self._displays = displays(self._facts, self._wake)
        self._planned = {(source.local_rank, source.name): source for source in sources}
        for display in set(self._displays.values()):
            display.begin_round(source for source in sources if source.shown_on in display.fds)
        self._files.begin_round(sources, self._facts.log_max_size)

    def _take_source(self, key: tuple[int, str], fd: int) -> None:
        source = self._planned[key]
        os.set_blocking(fd, False)
        self._readers[fd] = Reader(source)
        self._fds[key] = fd
        self._poll.register(fd, select.POLLIN)
        if source.shown_on in self._broken:
            self._output_broken(source.shown_on)
        if source.style == "keyboard":
            from phalanx.console.relay import Relay

            self._relay = Relay(fd, self._poll)

    def _worker_gone(self, local_rank: int) -> None:
        for name in ("stdout", "stderr"):
            fd = self._fds.get((local_rank, name), -1)
            reader = self._readers.get(fd)
            if reader is None:
                continue
            self._drain(fd)
            self._put(reader, reader.give_up_line())
            self._release_keyboard(fd)

    def _end_round(self, failed: Iterable[int]) -> None:
        self._close_all()
        self._files.end_round()
        wanted = {rank: words for rank, words in self._tails.items() if rank in set(failed)}
        self._tails = {}
        self._fds = {}
        self._link.send(control.Tails(tuple(wanted.items())))

    def _close_all(self) -> None:
        for fd in list(self._readers):
            self._drain(fd)
            if fd in self._readers:  # it had no end
                self._close(fd)
        self._flush(monotonic(), last=True)

    def _release_keyboard(self, master: int | None = None) -> None:
        """The terminal is as it was. `master`: if this has the keyboard; None: whatever has."""
        if self._relay is not None and master in (None, self._relay.master):
            self._relay.restore()
            self._relay = None

    def _resize(self, columns: int, rows: int) -> None:
        import termios

        for display in self._displays.values():
            display.resize(columns)
        for fd, reader in self._readers.items():
            beside = 0 if reader.source.style == "keyboard" else reader.source.prefix_width
            try:
                termios.tcsetwinsize(fd, (rows, max(20, columns - beside)))
            except termios.error:
                pass  # a pipe has none

    def _finish(self, *, report_follows: bool) -> None:
        self._ending.finish(monotonic())
        self._close_all()
        if report_follows:
            for display in self._displays.values():
                display.end_line()

    # Reading

    def _ready(self, fd: int, events: int) -> None:
        if events & select.POLLOUT and self._relay is not None and self._relay.master == fd:
            self._relay.pass_on()
            self._watch(fd)
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            if self._is_held_up(fd):
                self._paused.add(fd)
                self._watch(fd)
            else:
                self._read(fd)

    def _read(self, fd: int) -> int:
        """One piece; how long it was, 0: there is nothing, and perhaps never will be."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal says that nobody has it open any more
            chunk = b""
        if not chunk:
            self._close(fd)
            return 0
        reader = self._readers[fd]
        self._put(reader, reader.take(chunk, monotonic()))
        if reader.deadline is not None:
            self._redrawing.add(reader)
        return len(chunk)

    def _put(self, reader: Reader, buffers: list[bytes | memoryview]) -> None:
        if not buffers:
            return
        source = reader.source
        if source.file:
            self._files.put(source, buffers)
        if source.shown_on and source.shown_on not in self._broken:
            self._displays[source.shown_on].add(reader, buffers, monotonic())

    def _drain(self, fd: int) -> None:
        """All that is in the pipe now."""
        left = _MOST_AT_END
        while left > 0 and fd in self._readers:
            size = self._read(fd)
            if not size:
                break
            left -= size

    def _close(self, fd: int) -> None:
        reader = self._readers.pop(fd)
        self._fds.pop((reader.source.local_rank, reader.source.name), None)
        self._put(reader, reader.give_up_line())
        if reader.source.last_words:
            self._tails[reader.source.local_rank] = reader.last_words
        self._release_keyboard(fd)
        self._paused.discard(fd)
        self._unwatch(fd)
        os.close(fd)

    def _is_held_up(self, fd: int) -> bool:
        source = self._readers[fd].source
        display = self._displays.get(source.shown_on)
        if display is not None and source.shown_on not in self._broken and display.place.is_full:
            return True
        return bool(source.file) and self._files.are_full

    def _go_on(self) -> None:
        """A place has room again."""
        resumed, self._paused = self._paused, set()
        for fd in resumed:
            self._watch(fd)

    def _watch(self, fd: int) -> None:
        """Wait for what is to be read there, or for room for keys, as things are."""
        events = 0 if fd in self._paused else select.POLLIN
        if self._relay is not None and self._relay.master == fd and self._relay.is_waiting:
            events |= select.POLLOUT
        if events:
            self._poll.register(fd, events)
        else:
            self._unwatch(fd)  # or its end would be told of for ever

    def _unwatch(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    # Trouble

    def _look_after(self, now: float) -> None:
        for reader in list(self._redrawing):
            self._put(reader, reader.settle(now))
            if reader.deadline is None:
                self._redrawing.discard(reader)
        for display in set(self._displays.values()):
            while display.place.troubles:
                error = display.place.troubles.popleft().error
                if error.errno in (_EPIPE, _EIO):
                    self._stream_broken(display)
                else:
                    self._warn_once(cannot_write(display.stream.name, error.errno or 0))
        was_held = self._files.are_full
        for text in self._files.look_after(now):
            self._link.send(control.Warn(text))
        if was_held and not self._files.are_full:
            self._go_on()

    def _stream_broken(self, display: Display) -> None:
        """Nobody reads it any more: workers are to find that out as they would by themselves."""
        for fd in (1, 2):
            if self._displays[fd] is display and fd not in self._broken:
                self._broken.add(fd)
                self._output_broken(fd)

    def _output_broken(self, shown_on: int) -> None:
        for fd, reader in list(self._readers.items()):
            if reader.source.shown_on == shown_on and not reader.source.file:
                self._close(fd)
        self._go_on()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._link.send(control.Warn(text))
