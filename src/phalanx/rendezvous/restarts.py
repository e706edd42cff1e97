"""PURE: may the worker group be restarted once more, and how soon?

The budget is a total (`--max-restarts=3`) or what a sliding window allows (`3/1h`): then no stretch
of time of that length sees more restarts than that. A restart that follows a failure is immediate,
as most failures pass. But a job that fails at once, again and again, is not started as fast as the
machine can: from the second *fast* failure in a row the pauses grow, 1, 2, 4 ... s. A failure of a
round that had been running for a while ends the row.
"""

from __future__ import annotations

from phalanx.record import Record

__all__ = ["FAST_FAILURE_S", "Grant", "Restarts"]

#: A round that fails within this time of its start has failed fast.
FAST_FAILURE_S = 10.0


class Grant(Record):
    """One more restart. `count`: how many that makes in the life of the job."""

    count: int
    #: How many that makes within the window; 0 if there is none.
    in_window: int
    delay_s: float


class Restarts:
    """All restarts of one job. Instants are on the coordinator's clock, in seconds."""

    def __init__(self, maximum: int, window_s: float | None, max_delay_s: float) -> None:
        self.count = 0
        self._maximum = maximum
        self._window_s = window_s
        self._max_delay_s = max_delay_s
        #: When the restarts were made that may still be in the window.
        self._made_at: list[float] = []
        self._fast_in_a_row = 0

    def left(self, now: float) -> bool:
        """Could one more be granted? Asked while none that was granted is yet to be made."""
        return self._in_window(now) < self._maximum

    def grant(self, ran_s: float, now: float) -> Grant:
        """One more, after a round that failed `ran_s` seconds after its start."""
        assert self.left(now), "a restart beyond the budget"
        self._fast_in_a_row = self._fast_in_a_row + 1 if ran_s < FAST_FAILURE_S else 0
        in_window = 0 if self._window_s is None else self._in_window(now) + 1
        self.count += 1
        return Grant(self.count, in_window, self._delay_s())

    def made(self, now: float) -> None:
        """The restart that was granted has been made, on time or late."""
        self._made_at.append(now)

    def _in_window(self, now: float) -> int:
        if self._window_s is None:
            return self.count
        self._made_at = [at for at in self._made_at if at > now - self._window_s]
        return len(self._made_at)

    def _delay_s(self) -> float:
        if self._fast_in_a_row < 2:
            return 0.0
        doublings = min(self._fast_in_a_row - 2, 30)  # a float has an end, a row of failures none
        return min(float(2**doublings), self._max_delay_s)
