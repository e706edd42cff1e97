"""What this node sees of a round, kept until it is over; then the verdict of `report` on it.

The agent tells it what happens. Nothing is asked of the machine here but what a failed worker has
left: its error file, and whether the kernel has been killing for want of memory.
"""

from __future__ import annotations

import os

from phalanx.agent.evidence import gather, memory_counters
from phalanx.record import replace
from phalanx.report.evidence import Observed, WorkerEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.agent.log_paths import Attempt, LogPaths
    from phalanx.job import JobSpec
    from phalanx.outcome import Failure
    from phalanx.rendezvous.effects import Assignment
    from phalanx.rendezvous.events import Explained
    from phalanx.report.decide import Verdict
    from phalanx.report.evidence import MemoryCounters

__all__ = ["Observer"]

#: With these a program ends that will never do better, and such words are in what it says last:
#: an exception at its beginning, or the complaint of argparse.
_CODES_FOR_GOOD = (1, 2)
_WORDS_FOR_GOOD = (b"SyntaxError", b"IndentationError", b"TabError", b"ImportError",
                   b"ModuleNotFoundError", b"usage:")  # fmt: skip


class _Ended:
    """A worker that has ended, and not well."""

    def __init__(self, failure: Failure, at: float, memory: MemoryCounters | None) -> None:
        self.failure = failure
        self.at = at
        self.memory = memory


class Observer:
    """One for the life of an agent; it remembers one round at a time."""

    def __init__(self, spec: JobSpec, host: str, paths: LogPaths) -> None:
        self._verdict: Verdict | None = None
        #: What the verdict is to be on, while nobody has asked for it.
        self._over: Observed | None = None
        self._spec = spec
        self._host = host
        self._paths = paths
        self._assignment: Assignment | None = None
        self._attempt = paths.no_files(spec.local_world_size)
        self._started_at = 0.0
        self._memory_before: MemoryCounters | None = None
        self._ended: list[_Ended] = []
        self._stop: tuple[float, int] | None = None  #: when which stop signal was sent
        self._killed: set[int] = set()
        self._cause_is_told = False

    @property
    def stop_signal(self) -> int | None:
        """With which the round is being stopped."""
        return self._stop[1] if self._stop else None

    def untold_cause(self) -> Failure | None:
        """What was seen to fail first, to be said while the others are stopped: once a round."""
        own = [each for each in self._ended if not self._was_stopped(each)]
        if not own or self._cause_is_told:
            return None
        self._cause_is_told = True
        return own[0].failure

    @property
    def verdict(self) -> Verdict | None:
        """On the last round that is over, if anything failed in it by itself."""
        if self._verdict is None and self._over is not None:
            from phalanx.report.decide import decide

            self._verdict = decide(self._over)
        return self._verdict

    def round_started(self, assignment: Assignment, attempt: Attempt, now: float) -> None:
        self._assignment = assignment
        self._attempt = attempt
        self._started_at = now
        self._memory_before = memory_counters()
        self._ended = []
        self._stop = None
        self._killed = set()
        self._cause_is_told = False

    def stop_sent(self, signum: int, now: float) -> None:
        """The round's workers are being stopped. What ends later has not failed by itself."""
        if self._stop is None:
            self._stop = (now, signum)

    def killing(self, local_ranks: tuple[int, ...]) -> None:
        """These had to be killed, at the end of the shutdown timeout."""
        self._killed.update(local_ranks)

    def worker_failed(self, failure: Failure, at: float) -> None:
        """A worker has ended, and not with 0, at this instant of CLOCK_BOOTTIME."""
        by_kill = failure.status.signal is not None
        self._ended.append(_Ended(failure, at, memory_counters() if by_kill else None))

    def round_over(
        self,
        tails: tuple[tuple[int, bytes], ...],
        stuck: tuple[tuple[int, str], ...],
        error: str = "",
    ) -> tuple[Explained, ...]:
        """Nothing of the round is left but `stuck`. What is known of its failures, by local rank.

        `tails`: the last of what failed workers wrote to stderr. `error`: why the node failed.
        """
        self._verdict = self._over = None
        if all(map(self._was_stopped, self._ended)) and not stuck and not error:
            return ()
        self._over = self._observed(dict(tails), stuck, error)
        if not any(map(_may_be_for_good, self._over.ends)):
            return ()  # a restart is not to wait for 20 ms of imports
        from phalanx.report.decide import explained

        return explained(self.verdict) if self.verdict is not None else ()

    def _observed(
        self, tails: dict[int, bytes], stuck: tuple[tuple[int, str], ...], error: str
    ) -> Observed:
        spec, place = self._spec, self._assignment
        return Observed(
            host=self._host,
            run_id=spec.run_id,
            round=place.round if place else -1,
            restart_count=place.restart_count if place else 0,
            max_restarts=spec.max_restarts,
            world_size=place.world_size if place else spec.local_world_size,
            local_world_size=spec.local_world_size,
            target=spec.command.target,
            kind=spec.command.kind,
            ends=tuple(self._end(each, tails) for each in self._ended),
            stuck=stuck,
            log_dir=self._paths.job_dir,
            logs_kept=self._paths.chosen,
            error=error,
        )

    def _end(self, ended: _Ended, tails: dict[int, bytes]) -> WorkerEnd:
        local_rank = ended.failure.local_rank
        assert local_rank is not None
        folder = self._attempt.workers[local_rank]
        evidence = gather(
            os.path.join(folder, "error.json") if folder else "",
            tails.get(local_rank),
            self._memory_before,
        )
        if ended.memory is not None:
            evidence = replace(evidence, memory_after=ended.memory)
        return WorkerEnd(
            failure=ended.failure,
            after_s=max(0.0, ended.at - self._started_at),
            stopped_by=self._stop[1] if self._stop and self._was_stopped(ended) else None,
            killed_at_timeout=local_rank in self._killed,
            evidence=evidence,
        )

    def _was_stopped(self, ended: _Ended) -> bool:
        """It had been sent the stop signal before it ended."""
        return self._stop is not None and ended.at >= self._stop[0]


def _may_be_for_good(end: WorkerEnd) -> bool:
    """Whether it can heal is worth a closer look."""
    status, evidence = end.failure.status, end.evidence
    if status.errno is not None:
        return True
    if status.code not in _CODES_FOR_GOOD:
        return False
    words = evidence.error_file + evidence.stderr_tail
    return any(word in words for word in _WORDS_FOR_GOOD)
