"""What the fork server and the writer say to each other, over a socket pair.

Frames of a length and a marshalled tuple: both are one program, one forked from the other. With a
round come the descriptors to read, by SCM_RIGHTS, some at a time: the kernel takes 253 at most.
"""

from __future__ import annotations

import _socket as net  # without the 4 ms of socket.py
import array
import marshal
import select

from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AllPrinted",
    "BeginRound",
    "EndRound",
    "Finish",
    "Hurry",
    "ReleaseKeyboard",
    "Resize",
    "SayLine",
    "Tails",
    "TakeSources",
    "Warn",
    "WorkerGone",
    "WriterLink",
]

#: Descriptors that go with one frame.
_MOST_FDS = 200
#: Octets of one packet. What does not fit into the receiver's buffer is lost, into the sender's
#: refused.
_PACKET = 1 << 15
#: A round's start may wait so long for a writer that is slow to read.
_SEND_TIMEOUT_S = 2.0
#: Orders wait here while the writer does not read; more are dropped, and it is as good as lost.
_MOST_WAITING = 1 << 20


class BeginRound(Record):
    """The sources of a round, as `console.plan` has packed them; TakeSources follows."""

    plan: bytes


class TakeSources(Record):
    """(local rank, "stdout" or "stderr") of the descriptors that come with this, in order."""

    keys: tuple[tuple[int, str], ...]


class WorkerGone(Record):
    """It is dead: what it has written is in its pipes, all of it."""

    local_rank: int


class EndRound(Record):
    """Nothing of the round lives. Answered by Tails, for the workers that failed."""

    failed: tuple[int, ...]


class SayLine(Record):
    """A line of phalanx for stderr, without its "phalanx: "."""

    text: str


class Resize(Record):
    """The terminal has this size now."""

    columns: int
    rows: int


class Finish(Record):
    """Print all that there is, say AllPrinted, and leave.

    `report_follows`: something else will be printed then, and wants to begin a line.
    """

    report_follows: bool


class Hurry(Record):
    """Whoever waits for the end of the output does not want to wait much longer."""


class ReleaseKeyboard(Record):
    """Whoever has the keyboard is being stopped: the terminal is as it was from now on."""


class Tails(Record):
    """(local rank, its last words) of workers whose stderr was read."""

    tails: tuple[tuple[int, bytes], ...]


class Warn(Record):
    """A line for people."""

    text: str


class AllPrinted(Record):
    """Nothing is left to print."""


ControlMessage = (
    BeginRound
    | TakeSources
    | WorkerGone
    | EndRound
    | SayLine
    | Resize
    | Finish
    | Hurry
    | ReleaseKeyboard
    | Tails
    | Warn
    | AllPrinted
)
_KINDS: tuple[type[ControlMessage], ...] = (
    BeginRound,
    TakeSources,
    WorkerGone,
    EndRound,
    SayLine,
    Resize,
    Finish,
    Hurry,
    ReleaseKeyboard,
    Tails,
    Warn,
    AllPrinted,
)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}


class WriterLink:
    """One end. `send` never blocks; `begin_round`, for the fork server, waits a little."""

    def __init__(self, sock: net.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()
        #: Descriptors that have come, and belong to frames still to be read.
        self.fds: list[int] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, message: ControlMessage) -> None:
        """Now, or when there is room. A peer that is gone is noticed by `receive`."""
        if len(self._out) < _MOST_WAITING:
            self._out += _frame(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out[:_PACKET])
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()

    def begin_round(self, plan: bytes, sources: Sequence[tuple[int, str, int]]) -> None:
        """Hand over a round's descriptors: (local rank, name, descriptor). Raises OSError."""
        self.send(BeginRound(plan))
        for start in range(0, len(sources), _MOST_FDS):
            part = sources[start : start + _MOST_FDS]
            while self._out:
                self._wait()
                self.flush()
            frame = _frame(TakeSources(tuple((rank, name) for rank, name, _fd in part)))
            rights = array.array("i", [fd for _rank, _name, fd in part])
            with_it = [(net.SOL_SOCKET, net.SCM_RIGHTS, rights.tobytes())]
            self._wait()
            sent = self._sock.sendmsg([frame], with_it)
            self._out += frame[sent:]

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLOUT)
        if not poll.poll(_SEND_TIMEOUT_S * 1000):
            raise TimeoutError(110, "the writer does not read its orders")

    def receive(self) -> tuple[list[ControlMessage], bool]:
        """What has arrived, and is the peer still there?"""
        there = True
        space = net.CMSG_SPACE(_MOST_FDS * 4)
        try:
            while True:
                data, extra, _flags, _from = self._sock.recvmsg(_PACKET, space)
                for level, kind, rights in extra:
                    if (level, kind) == (net.SOL_SOCKET, net.SCM_RIGHTS):
                        usable = rights[: len(rights) - len(rights) % 4]
                        self.fds += array.array("i", usable).tolist()
                if not data:
                    there = False
                    break
                self._in += data
        except BlockingIOError:
            pass
        except OSError:
            there = False
        return self._frames(), there

    def _frames(self) -> list[ControlMessage]:
        messages: list[ControlMessage] = []
        while len(self._in) >= 4:
            end = 4 + int.from_bytes(self._in[:4], "little")
            if len(self._in) < end:
                break
            number, *fields = marshal.loads(self._in[4:end])
            messages.append(_KINDS[number](*fields))
            del self._in[:end]
        return messages

    def take_fds(self, count: int) -> list[int]:
        """The descriptors of the oldest TakeSources that has not been served."""
        taken, self.fds = self.fds[:count], self.fds[count:]
        return taken


def _frame(message: ControlMessage) -> bytes:
    body = marshal.dumps((_NUMBER[type(message)], *message._values()))  # type: ignore[arg-type]
    return len(body).to_bytes(4, "little") + body
