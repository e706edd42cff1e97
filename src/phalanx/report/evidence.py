"""PURE: what was observed of a round that went wrong, as the records that `decide` takes."""

from __future__ import annotations

from phalanx.job import CommandKind
from phalanx.outcome import Failure
from phalanx.record import Record

__all__ = ["Evidence", "MemoryCounters", "Observed", "WorkerEnd"]


class MemoryCounters(Record):
    """How often the kernel has killed for want of memory, as counted at one instant.

    None: not to be had here.
    """

    #: In our cgroup, or below it (v2: memory.events; v1: memory.oom_control).
    cgroup_oom_kills: int | None = None
    #: On the whole machine (/proc/vmstat).
    machine_oom_kills: int | None = None
    #: The cgroup's limit, in octets; None: there is none.
    limit: int | None = None


class Evidence(Record):
    """What a worker has left behind."""

    #: The octets of its error file, cut to a bound; empty: it wrote none.
    error_file: bytes = b""
    #: The last it wrote to stderr, cut to a bound, as far as phalanx read that stream.
    stderr_tail: bytes = b""
    #: phalanx read its stderr, so an empty tail means that it wrote nothing.
    stderr_read: bool = False
    #: At the start of the round, and right after its end by SIGKILL.
    memory_before: MemoryCounters | None = None
    memory_after: MemoryCounters | None = None
    #: Size of /dev/shm and what was free in it after its end, in octets.
    shm_size: int | None = None
    shm_free: int | None = None


class WorkerEnd(Record):
    """A worker that has ended, and not with 0."""

    failure: Failure
    #: Seconds from the start of the round.
    after_s: float
    #: The stop signal that it had been sent before it ended; None: it ended by itself.
    stopped_by: int | None = None
    #: It outlived the shutdown timeout.
    killed_at_timeout: bool = False
    evidence: Evidence = Evidence()


class Observed(Record):
    """A round in which something failed, on one node."""

    host: str
    run_id: str
    round: int
    restart_count: int
    max_restarts: int
    world_size: int
    local_world_size: int
    #: What every worker ran.
    target: str
    kind: CommandKind
    #: In the order in which they were reaped.
    ends: tuple[WorkerEnd, ...] = ()
    #: What SIGKILL did not end: (pid, kernel wait channel).
    stuck: tuple[tuple[int, str], ...] = ()
    #: The job's log directory; None: no files.
    log_dir: str | None = None
    #: Those files stay after the end of the job.
    logs_kept: bool = False
    #: Why the node itself failed, as a sentence; empty: it did not.
    error: str = ""
