"""Ask something of another program, in a throw-away child, and stay interruptible meanwhile.

Libraries of drivers hang, crash and start threads, and `import torch` takes seconds; none of that
may happen in the agent. The child has a session of its own
(Ctrl-C does not reach it, we pass on nothing), /dev/null for stdin, and no blocked signals.
Between it and us stands a guard (see `guard`), so that nothing that it starts outlives the
question, nor us.

phalanx holds back stop signals from its first instant, until the agent has its handlers. During a
question they are let in: handlers that do nothing are set, whose wake-up descriptor is waited for
together with the child's output. Nothing is polled, nothing is raised out of a handler. Afterwards
all is as before, and a signal that came too late for the question has not been lost.
"""

from __future__ import annotations

import os
import select
import signal

from phalanx.devices.guard import GONE_AFTER_KILL_S, guard
from phalanx.errors import ExitCode, PhalanxError, StartError
from phalanx.outcome import ExitStatus
from phalanx.record import Record
from phalanx.report.words import LIMITS, signal_name
from phalanx.say import say
from phalanx.workers.process import (
    boottime,
    die_with_parent,
    exit_status,
    signal_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

__all__ = ["Answer", "ask"]

#: When to say what is being waited for.
SAY_AFTER_S = 10.0
#: Of each stream the end is kept; the answer is at the end.
_KEEP_OCTETS = 1 << 20
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Answer(Record):
    """What the child said, and how it ended (`status.errno`: it could not be started)."""

    status: ExitStatus
    out: str = ""
    err: str = ""
    #: `out` was so long that its beginning is lost.
    cut: bool = False


def ask(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    whom: str,
    timeout_s: float,
    hint: str = "",
) -> Answer:
    """Run `argv` to its end. Call from the main thread.

    `whom` is who is asked, for people. Raises StartError if there is no answer within `timeout_s`
    (`hint` goes with it) or the system refuses a process, and PhalanxError (STOPPED) on a signal.
    """
    with _Listening() as signals:
        try:
            child = _Child(argv, environ)
        except OSError as error:
            raise _refused(whom, error) from None
        try:
            return _wait(child, signals, whom, timeout_s, hint)
        finally:
            child.end(signals)


def _refused(whom: str, error: OSError) -> StartError:
    return StartError(
        f"{whom} cannot be asked: {os.strerror(error.errno or 0)}",
        LIMITS.get(error.errno or 0, "see what the system's log says (dmesg)"),
        exit_code=ExitCode.SYSTEM,
    )


def _wait(child: _Child, signals: _Listening, whom: str, timeout_s: float, hint: str) -> Answer:
    started_at = boottime()
    say_at: float | None = started_at + SAY_AFTER_S
    while not child.has_ended():
        now = boottime()
        left_s = started_at + timeout_s - now
        if left_s <= 0:
            raise StartError(
                f"{whom} has not answered for {timeout_s:.0f} s",
                hint or "give numbers instead of asking for what is there",
                exit_code=ExitCode.UNAVAILABLE,
            )
        if say_at is not None and now >= say_at:
            say(f"waiting up to {left_s:.0f} s more for an answer of {whom}")
            say_at = None
        due_s = left_s if say_at is None else min(left_s, say_at - now)
        stopped_by = signals.wait(child, due_s)
        if stopped_by:
            raise _stopped(stopped_by)
    return child.answer()


def _stopped(signum: int) -> PhalanxError:
    return PhalanxError(
        f"stopped on request ({signal_name(signum)}) before the workers were started",
        exit_code=ExitCode.STOPPED,
    )


class _Listening:
    """Signals, as octets on a descriptor, for as long as a question takes; as before afterwards."""

    def __enter__(self) -> _Listening:
        self._fd, self._write_end = os.pipe()
        os.set_blocking(self._fd, False)
        os.set_blocking(self._write_end, False)
        heard = {*_STOP_SIGNALS, signal.SIGCHLD}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            heard.discard(signal.SIGHUP)  # nohup: its wish is kept, as by the agent
        self._heard = heard
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._handlers = {signum: signal.signal(signum, _nothing) for signum in heard}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        for signum, handler in self._handlers.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        late = self._stop_signal()
        os.close(self._fd)
        os.close(self._write_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if late and kind is None:
            raise _stopped(late)

    def wait(self, child: _Child, timeout_s: float) -> int:
        """Until the child says something or ends, or a signal comes: the stop signal, or 0."""
        waiting = select.poll()
        for fd in (self._fd, *child.streams):
            waiting.register(fd, select.POLLIN)
        ready = {fd for fd, _events in waiting.poll(max(0.0, timeout_s) * 1000 + 1)}
        child.read(ready)
        return self._stop_signal() if self._fd in ready else 0

    def _stop_signal(self) -> int:
        """The first stop signal among those that have come; 0: none."""
        try:
            signums = os.read(self._fd, 4096)
        except BlockingIOError:
            return 0
        return next((signum for signum in signums if signum in _STOP_SIGNALS), 0)


def _nothing(_signum: int, _frame: object) -> None:
    pass


class _Child:
    """The process that is asked."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start it. Raises OSError if the system refuses a process or a pipe."""
        pipes: list[tuple[int, int]] = []
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            us = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                fds = [write_end for _, write_end in pipes]
                guard(us, fds, lambda parent: _become(argv, environ, parent, fds))
        except OSError:
            for read_end, _ in pipes:
                os.close(read_end)
            raise
        finally:
            for _, write_end in pipes:
                os.close(write_end)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        #: What it has said so far, by descriptor: stdout, stderr, and what the guard says.
        self._said = {read_end: b"" for read_end, _ in pipes}
        self._out = pipes[0][0]
        self._cut = False
        #: Those of the three that have not come to their end.
        self.streams = {*self._said}
        self._dead: os.waitid_result | None = None
        self._lost = False
        for fd in self._said:
            os.set_blocking(fd, False)

    def read(self, ready: set[int]) -> None:
        """Take what has come; a stream that is at its end is not waited for any more."""
        for fd in ready & self.streams:
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                continue
            said = self._said[fd] + chunk
            self._cut = self._cut or (fd == self._out and len(said) > _KEEP_OCTETS)
            self._said[fd] = said[-_KEEP_OCTETS:]
            if not chunk:
                self.streams.discard(fd)

    def has_ended(self) -> bool:
        """It is dead, and so is its guard, which is not reaped: the pid cannot be another's yet."""
        if self._dead is None and not self._lost:
            try:
                self._dead = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._lost = True  # reaped by somebody else; whatever it said is the answer
        return self._dead is not None or self._lost

    def answer(self) -> Answer:
        """All that it said. A child of its own may hold the streams open: no end is waited for."""
        for fd in self._said:
            size = -1
            while fd in self.streams and size != len(self._said[fd]):
                size = len(self._said[fd])
                self.read({fd})
        out, err, report = (said.decode(errors="replace") for said in self._said.values())
        errno, _, ended = report.partition(";")
        if errno:
            return Answer(ExitStatus(errno=int(errno)))
        if ended:
            code, signum, core = map(int, ended.split())
            status = ExitStatus(signal=signum, core_dumped=core > 0) if signum else ExitStatus(code)
        else:  # somebody has killed the guard
            status = ExitStatus(0) if self._dead is None else exit_status(self._dead)
        return Answer(status, out, err, self._cut)

    def end(self, signals: _Listening) -> None:
        """Have the guard kill it with all that is below it, and reap the guard."""
        for signum, patience_s in ((signal.SIGTERM, GONE_AFTER_KILL_S + 1), (signal.SIGKILL, 1.0)):
            if not self.has_ended():
                signal_child(self._pid, signum)
            until = boottime() + patience_s
            while not self.has_ended() and boottime() < until:
                signals.wait(self, until - boottime())
        if self._dead is not None:
            os.waitid(os.P_PID, self._pid, os.WEXITED)
        for fd in self._said:
            os.close(fd)


def _become(
    argv: Sequence[str], environ: Mapping[str, str], parent: int, fds: Sequence[int]
) -> NoReturn:
    """In the child: never returns, whatever happens."""
    out, err, report_fd = fds
    try:
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for signum in (*_STOP_SIGNALS, signal.SIGCHLD):
            if signal.getsignal(signum) is _nothing:
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.execvpe(argv[0], tuple(argv), environ)
    except OSError as error:
        os.write(report_fd, str(error.errno or 5).encode())
    except BaseException:
        os.write(report_fd, b"22")
    finally:
        os._exit(127)
