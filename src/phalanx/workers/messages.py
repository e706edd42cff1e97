"""What agent and fork server say to each other, and how it is put on their socket pair.

Both ends are the same program, so a frame is four octets of length and a `marshal` of (kind,
fields); nothing from outside ever reaches this. Orders go down, reports come up. A report names
its round; one of an older round is history.
"""

from __future__ import annotations

import marshal
from _socket import SHUT_WR

from phalanx.outcome import ExitStatus
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

__all__ = [
    "Continue",
    "FinishOutput",
    "GroupGone",
    "HurryOutput",
    "Kill",
    "Link",
    "Message",
    "OpenStore",
    "OutputFinished",
    "OutputWarning",
    "Ping",
    "Pong",
    "Ready",
    "ReleaseKeyboard",
    "Resize",
    "SayLine",
    "ServiceLost",
    "SignalAll",
    "Start",
    "Stop",
    "StopTakesTime",
    "StopTimedOut",
    "StoreRefused",
    "Suspend",
    "Suspended",
    "WorkerExited",
    "WorkerStarted",
]

# Orders, agent to fork server


class OpenStore(Record):
    """Have a store listen for the first round: on this port in every round, or on a free one.

    `loopback`: on loopback addresses only. `in_worker`: rank 0 serves it, only its port is held.
    Answered by Ready or StoreRefused.
    """

    port: int | None
    loopback: bool
    in_worker: bool


class Start(Record):
    """Start the workers of a round: (local rank, command, environment to add, CPUs) for each.

    A None in the environment takes the variable away. No CPUs: all that phalanx may use.
    """

    round: int
    workers: tuple[tuple[int, tuple[str, ...], dict[str, str | None], tuple[int, ...]], ...]
    #: Stop signals go to the whole process group of a worker.
    whole_group: bool
    #: Seconds that helpers get once the last worker is gone.
    leftover_timeout_s: float
    #: What each worker has as stdout and stderr, in words of `console.plan`; none: our own.
    streams: tuple[tuple[str, str], ...] = ()
    #: What the writer is to do in this round, for `console.writer`; empty: nothing.
    output: bytes = b""
    #: Columns and rows of the workers' terminals.
    window: tuple[int, int] = (80, 24)


class Stop(Record):
    round: int
    signum: int
    timeout_s: float


class Kill(Record):
    round: int


class SignalAll(Record):
    """Hand a signal on to every worker (to its group if stop signals go there), and go on."""

    round: int
    signum: int


class Suspend(Record):
    """Have all that runs stand still, unless it is being stopped. Answered by Suspended."""


class Continue(Record):
    """Let what was suspended go on."""


class SayLine(Record):
    """Have the writer print a line of phalanx on stderr, in its place among the workers'."""

    text: str


class Resize(Record):
    """The terminal has this size now."""

    columns: int
    rows: int


class FinishOutput(Record):
    """No round will follow: print all that there is. Answered by OutputFinished.

    `report_follows`: the agent will print something behind it.
    """

    report_follows: bool


class ReleaseKeyboard(Record):
    """The job is being stopped: the terminal is the user's again, and Ctrl-C is for phalanx."""


class HurryOutput(Record):
    """Do not wait any longer for a reader of the output that does not read."""


class Ping(Record):
    number: int


# Reports, fork server to agent


class Ready(Record):
    """A store listens on this port for the first round, or the port is held for rank 0's."""

    store_port: int


class StoreRefused(Record):
    """The store's port cannot be had."""

    port: int
    errno: int


class WorkerStarted(Record):
    """The worker's program runs (its exec succeeded)."""

    round: int
    local_rank: int
    pid: int


class WorkerExited(Record):
    """The worker is dead and reaped, or never ran. `at` is CLOCK_BOOTTIME, in seconds."""

    round: int
    local_rank: int
    pid: int
    code: int | None
    signal: int | None
    core_dumped: bool
    errno: int | None
    at: float

    @property
    def status(self) -> ExitStatus:
        return ExitStatus(self.code, self.signal, self.core_dumped, self.errno)


class StopTakesTime(Record):
    """These workers and helpers have not stopped yet, and have up to `left_s` seconds more."""

    round: int
    local_ranks: tuple[int, ...]
    helpers: int
    left_s: float


class StopTimedOut(Record):
    """SIGKILL goes out at the end of the shutdown timeout, to these workers and helpers."""

    round: int
    local_ranks: tuple[int, ...]
    helpers: int


class GroupGone(Record):
    """Nothing of the round is left but `stuck`: (pid, kernel wait channel) of what cannot die.

    A fresh store listens on `store_port` for the next round. `tails`: (local rank, the last that a
    failed worker wrote to stderr) as far as the writer saw it.
    """

    round: int
    store_port: int
    stuck: tuple[tuple[int, str], ...]
    tails: tuple[tuple[int, bytes], ...] = ()


class OutputFinished(Record):
    """All output is where it belongs, or can never be; there is no writer any more."""


class OutputWarning(Record):
    """Something of the output is lost: a line for people."""

    text: str


class ServiceLost(Record):
    """The process that serves the store has died, and its content with it; or never started."""

    round: int
    name: str
    code: int | None
    signal: int | None
    errno: int | None


class Suspended(Record):
    """All that there was to suspend stands still, or was given up on."""


class Pong(Record):
    number: int


Message = (
    OpenStore
    | Start
    | Stop
    | Kill
    | SignalAll
    | Suspend
    | Continue
    | SayLine
    | Resize
    | FinishOutput
    | HurryOutput
    | ReleaseKeyboard
    | Ping
    | Ready
    | StoreRefused
    | WorkerStarted
    | WorkerExited
    | StopTakesTime
    | StopTimedOut
    | GroupGone
    | ServiceLost
    | Suspended
    | OutputFinished
    | OutputWarning
    | Pong
)

_KINDS: tuple[type[Message], ...] = (
    OpenStore,
    Start,
    Stop,
    Kill,
    SignalAll,
    Suspend,
    Continue,
    SayLine,
    Resize,
    FinishOutput,
    HurryOutput,
    ReleaseKeyboard,
    Ping,
    Ready,
    StoreRefused,
    WorkerStarted,
    WorkerExited,
    StopTakesTime,
    StopTimedOut,
    GroupGone,
    ServiceLost,
    Suspended,
    OutputFinished,
    OutputWarning,
    Pong,
)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}


class Link:
    """One end of the socket pair. Never blocks: what cannot be sent now waits in `_out`."""

    def __init__(self, sock: socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """What is sent after this goes nowhere; nothing more is received."""
        self._out.clear()
        self._sock.close()

    def end(self) -> None:
        """Nothing more will be sent: the peer sees the end, and can still be heard."""
        try:
            self._sock.shutdown(SHUT_WR)
        except OSError:
            pass  # the peer, or the link, is gone already

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, message: Message) -> None:
        fields = message._values()
        body = marshal.dumps((_NUMBER[type(message)], *fields))  # type: ignore[arg-type]
        self._out += len(body).to_bytes(4, "little")
        self._out += body
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. A peer that is gone is noticed by `receive`."""
        try:
            while self._out:
                sent = self._sock.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()

    def receive(self) -> tuple[list[Message], bool]:
        """All whole messages that are there, and whether the peer is still there."""
        there = True
        try:
            while chunk := self._sock.recv(1 << 18):
                self._in += chunk
            there = False
        except BlockingIOError:
            pass
        except OSError:
            there = False
        messages: list[Message] = []
        start = 0
        while len(self._in) - start >= 4:
            end = start + 4 + int.from_bytes(self._in[start : start + 4], "little")
            if len(self._in) < end:
                break
            number, *fields = marshal.loads(self._in[start + 4 : end])
            messages.append(_KINDS[number](*fields))
            start = end
        del self._in[:start]
        return messages, there
