"""The agent's part in the output: what each worker's streams are to be, and who prints our lines.

The agent never writes what workers write, and never waits for it: that is the writer's, a process
of its own (`console.writer`). Once there is a writer, our own lines go through it, too, so that
they have their place among the workers' and garble none. At the end it is told to finish, and
nothing is printed by the agent until it has.
"""

from __future__ import annotations

import os

from phalanx.console.plan import Surroundings, WorkerPlace, plan
from phalanx.record import replace
from phalanx.workers.messages import (
    FinishOutput,
    HurryOutput,
    ReleaseKeyboard,
    Resize,
    SayLine,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from phalanx.agent.log_paths import Attempt
    from phalanx.job import JobSpec
    from phalanx.rendezvous.effects import Assignment
    from phalanx.workers.messages import Link, Start

__all__ = ["Output", "surroundings"]


class Output:
    """One for the life of an agent."""

    def __init__(self, spec: JobSpec, link: Link, say: Callable[[str], None]) -> None:
        self.around = surroundings()
        self._spec = spec
        self._link = link
        self._say = say
        self._writer_there = False
        self._finishing = False
        self._hurried = False
        #: The modes of the terminal, should nobody else put them back.
        self._modes = _terminal_modes() if self.around.stdin_is_terminal else None

    def fill_in(self, order: Start, assignment: Assignment, attempt: Attempt) -> Start:
        """The order to start a round, with what its workers' streams are."""
        workers = [
            WorkerPlace(local_rank, assignment.rank_base + local_rank, self._spec.role, folder)
            for local_rank, folder in enumerate(attempt.workers)
        ]
        planned = plan(self._spec.console, self.around, workers, attempt.folder)
        self._writer_there = self._writer_there or bool(planned.writer)
        return replace(
            order,
            streams=tuple((each.stdout, each.stderr) for each in planned.streams),
            output=planned.writer,
            window=(self._columns(planned.columns), self.around.rows),
        )

    def _columns(self, beside_prefix: int) -> int:
        return self.around.columns if self._spec.console.tty_rank is not None else beside_prefix

    def say(self, text: str) -> None:
        """Print a line of ours, among the workers' lines if the writer has those."""
        if self._writer_there:
            self._link.send(SayLine(text))
        else:
            self._say(text)

    def release_keyboard(self) -> None:
        """The job is being stopped: with --tty, Ctrl-C is for phalanx again."""
        if self._spec.console.tty_rank is not None and self._writer_there:
            self._link.send(ReleaseKeyboard())

    def resized(self) -> None:
        """The terminal has another size."""
        self.around = surroundings()
        if self._writer_there:
            self._link.send(Resize(self.around.columns, self.around.rows))

    def finish(self, *, report_follows: bool) -> bool:
        """No round will follow. Is all printed? If not, `finished` will be called."""
        if self._writer_there and not self._finishing:
            self._finishing = True
            self._link.send(FinishOutput(report_follows))
            if self._hurried:
                self._link.send(HurryOutput())
        return not self._writer_there

    def hurry(self) -> None:
        """Somebody wants an end, and will not wait for a reader that does not read."""
        self._hurried = True
        if self._finishing:
            self._link.send(HurryOutput())

    def finished(self) -> None:
        """There is no writer any more: what comes now is the agent's to print."""
        self._writer_there = False

    def restore_terminal(self) -> None:
        """A worker that dies while it edits a line leaves the terminal in a sorry state."""
        if self._modes is not None and self._modes != _terminal_modes() and _is_in_front():
            import termios

            try:
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
            except termios.error:
                pass  # it is gone


def surroundings() -> Surroundings:
    """What phalanx's own standard streams are."""
    stdout, stderr = os.isatty(1), os.isatty(2)
    columns, rows = _window()
    dumb = (os.environ.get("TERM") or "dumb") == "dumb"
    return Surroundings(
        stdin_is_terminal=os.isatty(0),
        stdout_is_terminal=stdout,
        stderr_is_terminal=stderr,
        same_file=_same_file(),
        columns=columns,
        rows=rows,
        colour=not dumb and not os.environ.get("NO_COLOR"),
        dumb=dumb,
    )


def _terminal_modes() -> list[Any] | None:
    import termios

    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _is_in_front() -> bool:
    """The terminal is ours to change, not that of a job in the foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _window() -> tuple[int, int]:
    """Columns and rows of the terminal; 80 by 24 if it does not say, or there is none."""
    for fd in (1, 2):
        try:
            size = os.get_terminal_size(fd)
        except OSError:
            continue
        return size.columns or 80, size.lines or 24
    return 80, 24


def _same_file() -> bool:
    """Are stdout and stderr one file, so that what goes to both has an order?"""
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False
