"""The writer's process, as its parent the fork server sees it, and the streams that it reads.

There is one for the whole job, forked when a round first has a stream that phalanx reads; what it
does is in `console.writer`. Pipes and terminals of a round are made here, before its workers are
started; then the writer gets the ends to read, and none of them stays behind. Should the fork
server be killed, it goes by itself, once it has printed what it has, or a second later.
"""

from __future__ import annotations

import _socket as net  # without the 4 ms of socket.py
import os
import select
import signal

from phalanx.workers.messages import (
    FinishOutput,
    HurryOutput,
    OutputFinished,
    OutputWarning,
    ReleaseKeyboard,
    Resize,
    SayLine,
)
from phalanx.workers.process import boottime, set_title
from phalanx.workers.spawn import Stdio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from phalanx.console.control import WriterLink
    from phalanx.workers.messages import Link, Start

__all__ = ["ConsoleProcess"]

#: The end of a round waits so long for the last words of failed workers.
ANSWER_TIMEOUT_S = 2.0


class ConsoleProcess:
    """At most one process; `pid` is None while there is none."""

    def __init__(self, poll: select.poll, agent: Link) -> None:
        self.pid: int | None = None
        #: The last that failed workers of the round said, when it has ended: (local rank, octets).
        self.tails: tuple[tuple[int, bytes], ...] = ()
        #: Until when the writer may take to answer the end of a round; None: nothing is asked.
        self.deadline: float | None = None
        self._poll = poll
        self._agent = agent
        self._link: WriterLink | None = None
        self._finishing = False
        #: Of the round that is being started: descriptors that workers get, and that we read.
        self._theirs: list[int] = []
        self._ours: list[tuple[int, str, int]] = []

    def fileno(self) -> int:
        """To wait for what the writer says; -1 without one."""
        return self._link.fileno() if self._link else -1

    # A round

    def open_streams(self, order: Start) -> list[Stdio]:
        """Make what the workers of a round get as standard streams. Raises OSError."""
        if not order.streams:
            return [Stdio()] * len(order.workers)
        try:
            stdin = None
            if any(stdout == "tty" for stdout, _stderr in order.streams):
                stdin = self._null(os.O_RDONLY)  # the keyboard is not for the others
            return [
                self._open(worker[0], *words, stdin, order.window)
                for worker, words in zip(order.workers, order.streams, strict=True)
            ]
        except OSError:
            self._close()
            raise

    def _open(
        self, local_rank: int, stdout: str, stderr: str, stdin: int | None, window: tuple[int, int]
    ) -> Stdio:
        if stdout == "tty":
            terminal = self._terminal(local_rank, "stdout", window, own=True)
            return Stdio(terminal, terminal, terminal, terminal=True)
        out = self._stream(local_rank, "stdout", stdout, window)
        err = out if stderr == "stdout" else self._stream(local_rank, "stderr", stderr, window)
        return Stdio(stdin, out, err)

    def _stream(self, local_rank: int, name: str, word: str, window: tuple[int, int]) -> int | None:
        match word:
            case "inherit":
                return None
            case "null":
                return self._null(os.O_WRONLY)
            case "pty":
                return self._terminal(local_rank, name, window)
            case _:
                read_end, write_end = os.pipe()
                self._ours.append((local_rank, name, read_end))
                self._theirs.append(write_end)
                return write_end

    def _null(self, flags: int) -> int:
        null = os.open(os.devnull, flags)
        self._theirs.append(null)
        return null

    def _terminal(
        self, local_rank: int, name: str, window: tuple[int, int], *, own: bool = False
    ) -> int:
        import termios

        master, slave = os.openpty()
        self._ours.append((local_rank, name, master))
        self._theirs.append(slave)
        columns, rows = window
        termios.tcsetwinsize(slave, (rows, columns))
        if not own:  # the real terminal does what is to be done to output
            modes = termios.tcgetattr(slave)
            modes[1] &= ~termios.OPOST
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(slave, termios.TCSANOW, modes)
        return slave

    def _close(self) -> None:
        for fd in (*self._theirs, *(fd for _rank, _name, fd in self._ours)):
            os.close(fd)
        self._theirs, self._ours = [], []

    def begin(self, order: Start) -> None:
        """The workers have their ends: give ours to the writer. Raises OSError."""
        self.tails = ()
        for fd in self._theirs:
            os.close(fd)
        self._theirs = []
        if not order.output:
            return
        try:
            if self._link is None:
                self._link = self._start()
            self._link.begin_round(order.output, self._ours)
        finally:
            self._close()

    def worker_gone(self, local_rank: int) -> None:
        """It is dead, so what it has written is in its pipes, and all of it."""
        if self._link is not None:
            from phalanx.console.control import WorkerGone

            self._link.send(WorkerGone(local_rank))

    def end_round(self, failed: Iterable[int]) -> None:
        """Nothing of the round is left: `round_ended` will be true once `tails` are complete."""
        if self._link is not None:
            from phalanx.console.control import EndRound

            self._link.send(EndRound(tuple(failed)))
            self.deadline = boottime() + ANSWER_TIMEOUT_S

    @property
    def round_ended(self) -> bool:
        """The writer has answered, or is given up on."""
        if self.deadline is not None and boottime() >= self.deadline:
            self.deadline = None
        return self.deadline is None

    # What the agent wants

    def order(
        self, message: SayLine | Resize | FinishOutput | HurryOutput | ReleaseKeyboard
    ) -> None:
        if self._link is None:
            self._agent.send(OutputFinished())  # from now on the agent prints its lines itself
            if isinstance(message, SayLine):
                self._agent.send(OutputWarning(message.text))
            return
        from phalanx.console import control

        match message:
            case SayLine(text):
                self._link.send(control.SayLine(text))
            case Resize(columns, rows):
                self._link.send(control.Resize(columns, rows))
            case FinishOutput(report_follows):
                self._finishing = True
                self._link.send(control.Finish(report_follows))
            case ReleaseKeyboard():
                self._link.send(control.ReleaseKeyboard())
            case HurryOutput():
                self._link.send(control.Hurry())

    # What the writer says

    def hear(self) -> None:
        from phalanx.console.control import AllPrinted, Tails, Warn

        if self._link is None:
            return
        messages, there = self._link.receive()
        for message in messages:
            match message:
                case Tails(tails):
                    self.tails = tails
                    self.deadline = None
                case Warn(text):
                    self._agent.send(OutputWarning(text))
                case AllPrinted():
                    self._agent.send(OutputFinished())
        if not there:
            self._forget()

    def flush(self) -> None:
        """What the writer could not take before."""
        if self._link is not None:
            self._link.flush()
            wanted = select.POLLIN | (select.POLLOUT if self._link.wants_write else 0)
            self._poll.modify(self._link.fileno(), wanted)

    def ended(self) -> bool:
        """It has been reaped. Was it needed? Workers that print fail for want of a reader then."""
        self.hear()
        self._forget()
        self.pid = None
        if self._finishing:
            self._agent.send(OutputFinished())  # once more, or because it could not say so
        return not self._finishing

    def leave_behind(self) -> None:
        """In a child that has nothing to do with it."""
        if self._link is not None:
            self._link.close()

    def _forget(self) -> None:
        self.deadline = None
        if self._link is not None:
            self._poll.unregister(self._link.fileno())
            self._link.close()
            self._link = None

    # The process

    def _start(self) -> WriterLink:
        from phalanx.console.control import WriterLink

        ours, theirs = net.socketpair(net.AF_UNIX, net.SOCK_SEQPACKET)
        try:
            pid = os.fork()
            if pid == 0:
                _write(theirs)
        finally:
            theirs.close()
        self.pid = pid
        self._poll.register(ours.fileno(), select.POLLIN)
        return WriterLink(ours)


def _write(control: net.socket) -> NoReturn:
    """In the child. It keeps nothing of the fork server's: not the link to the agent, whose end
    would not be seen; not the ends of pipes and terminals.
    """
    try:
        set_title("phalanx writer")
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kept = {0, 1, 2, control.fileno()}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                try:
                    os.close(int(name))
                except OSError:
                    pass  # that of the listing itself
        from phalanx.console.writer import run_writer

        run_writer(control)
    except BaseException:
        import traceback

        os.write(2, f"phalanx: internal error in the writer\n{traceback.format_exc()}".encode())
    finally:
        os._exit(70)
