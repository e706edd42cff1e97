"""How workers end, and how a job does: the records that all parts speak of an end in.

An *exit status* is one worker's; a *failure* is an exit status that was not a success, with whose
it was; the *outcome* is the job's. What is said about them is in `report`.
"""

from __future__ import annotations

from enum import Enum

from phalanx.record import Record

__all__ = ["ExitStatus", "Explained", "Failure", "Outcome", "OutcomeKind", "unfit_reason"]


class ExitStatus(Record):
    """How a worker ended: exactly one of code, signal and could-not-start.

    `code` 0..255 is what it exited with; `signal` the signal that ended it; `errno` says why it
    never ran (then `code` and `signal` are None).
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    errno: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    @property
    def exit_code(self) -> int:
        """As a shell would report it: 128 + n for a signal, 126 or 127 for could-not-start."""
        if self.code is not None:
            return self.code
        if self.signal is not None:
            return 128 + self.signal
        return 127 if self.errno == 2 else 126


class Failure(Record):
    """One worker's end that was not a success, or the loss of one of our own processes.

    `local_rank` is None for our own; `what` then says which. `rank` is the rank in the world.
    """

    node: str
    host: str
    round: int
    local_rank: int | None
    rank: int | None
    pid: int
    status: ExitStatus
    what: str = "worker"


class Explained(Record):
    """What the node has found out about a failure of its own, once the round was over."""

    local_rank: int
    #: One word for how it died, the same on all nodes for the same cause: "exception", "oom", ...
    cause: str
    #: Another try may go better. False: nothing can heal, as with a SyntaxError.
    can_heal: bool


class OutcomeKind(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  #: on request
    UNFIT = "unfit"  #: a process could not be killed
    NODE_FAILED = "node failed"  #: phalanx itself lost a process it cannot do without


class Outcome(Record):
    """How the job ended. `failures` are those of the last round, the first failure first."""

    kind: OutcomeKind
    failures: tuple[Failure, ...] = ()
    #: The signal for STOPPED.
    signum: int | None = None
    #: A sentence for UNFIT and NODE_FAILED.
    reason: str = ""
    #: For FAILED, if restarts were left but another try would do no better: what it was, in a word.
    cannot_heal: str = ""


def unfit_reason(stuck: tuple[tuple[int, str], ...]) -> str:
    """Why a node is unfit: (pid, kernel wait channel) of what does not die."""
    listed = ", ".join(f"{pid} ({where or 'running'})" for pid, where in stuck)
    return f"SIGKILL did not end within 10 s: {listed}"
