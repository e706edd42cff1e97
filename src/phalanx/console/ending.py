"""When the writer has read enough, and when it may leave, written or not.

Told to finish, it leaves when all is written; a screen that nobody reads may keep it for ever, log
files for a while only, and neither once somebody is in a hurry. Alone, without the fork server, it
reads for a moment what is still coming, and writes for another. Times are seconds of one clock.
"""

from __future__ import annotations

__all__ = ["Ending"]

#: Without the fork server: to read, and then to write.
_ALONE_S = 0.7
_ALONE_WRITING_S = 0.3
#: Once somebody is in a hurry.
_HURRY_S = 2.0
#: The log files, at the end.
_FILES_S = 5.0
#: Between two looks at log files that are late.
_LOOK_AGAIN_S = 0.2


class Ending:
    """One for the life of a writer."""

    def __init__(self) -> None:
        self._alone_until: float | None = None
        self._reading_ended = False
        self._finishing_since: float | None = None
        self._hurry_until: float | None = None

    def finish(self, now: float) -> None:
        """The job has ended: what is there to be read is read now, and nothing later."""
        self._finishing_since = now

    def hurry(self, now: float) -> None:
        """Somebody waits for us, or will. Only the first time counts."""
        self._hurry_until = self._hurry_until or now + _HURRY_S

    def alone(self, now: float) -> None:
        """The fork server is gone, and nobody will tell us to finish."""
        self._alone_until = now + _ALONE_S

    @property
    def is_alone(self) -> bool:
        return self._alone_until is not None

    def stops_reading(self, now: float, *, may_come: bool) -> bool:
        """Whether we are alone and have read enough. True once: then read what is there, and close.

        `may_come`: there is still something open from which more could come.
        """
        if self._alone_until is None or self._reading_ended:
            return False
        if may_come and now < self._alone_until:
            return False
        self._reading_ended = True
        self._alone_until = now + _ALONE_WRITING_S
        return True

    @property
    def is_near(self) -> bool:
        """Nothing more will be read: once all is written we may leave."""
        if self._alone_until is not None:
            return self._reading_ended
        return self._finishing_since is not None

    def is_overdue(self, now: float) -> bool:
        """We leave now, whatever is not written yet."""
        until = self._hurry_until if self._alone_until is None else self._alone_until
        return self.is_near and until is not None and now >= until

    def files_are_late(self, now: float) -> bool:
        """Log files have had their time, and are not waited for any longer."""
        return self._finishing_since is not None and now >= self._finishing_since + _FILES_S

    def instants(self, now: float) -> list[float | None]:
        """When time alone may change one of these answers; None: never."""
        if self._finishing_since is None:
            return [self._alone_until]
        look_at_files = max(self._finishing_since + _FILES_S, now + _LOOK_AGAIN_S)
        return [self._alone_until, self._hurry_until, look_at_files]
