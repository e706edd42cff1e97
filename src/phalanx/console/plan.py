"""PURE: what each worker's streams are to be, and what the writer does with what it reads.

A stream of a worker is one of these, in one word for the fork server:

    inherit   phalanx's own stream
    null      nowhere
    pipe      the writer reads it
    pty       the writer reads it, and the worker sees a terminal
    stdout    (stderr only) whatever stdout is: the two have an order
    tty       a terminal for the worker alone, with the keyboard (`--tty`)

The rules, for the workers that are shown. One worker: its bytes go where ours do, unchanged; only
a stderr that is no terminal is read on its way, since its last words explain a failure. Several
workers: whole lines; on a terminal with the rank before them and a terminal behind them. What goes
to a file is no terminal, as under torchrun. Nobody's stderr goes unread if phalanx can help it.
"""

from __future__ import annotations

import marshal

from phalanx.job import Console, ConsoleMode
from phalanx.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.job import StreamChoice

__all__ = ["OutputPlan", "Source", "Streams", "Surroundings", "WorkerPlace", "plan", "unpack"]

STDOUT, STDERR = 1, 2
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
#: Colours of prefixes: neither red, which means trouble, nor black and white.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Surroundings(Record):
    """What phalanx's own standard streams are."""

    stdin_is_terminal: bool = False
    stdout_is_terminal: bool = False
    stderr_is_terminal: bool = False
    #: stdout and stderr are one file, so what goes to both has an order.
    same_file: bool = False
    #: Of the terminal.
    columns: int = 80
    rows: int = 24
    #: Colours are welcome on a terminal.
    colour: bool = False
    #: The terminal cannot clear a line (TERM=dumb).
    dumb: bool = False

    def is_terminal(self, stream: int) -> bool:
        return self.stdout_is_terminal if stream == STDOUT else self.stderr_is_terminal


class WorkerPlace(Record):
    """One worker of a round, and the directory of its files; None: no files."""

    local_rank: int
    rank: int
    role: str
    folder: str | None


class Streams(Record):
    """One worker's stdout and stderr, in the words of this module."""

    stdout: str
    stderr: str


class Source(Record):
    """One stream that the writer reads."""

    local_rank: int
    rank: int
    #: "stdout" or "stderr"; stdout for both if they are one.
    name: str
    #: The descriptor it is shown on, 1 or 2; 0: it is not shown.
    shown_on: int = 0
    #: "through": all octets, at once; "plain": whole lines; "prefix": with a prefix; "live": so, on
    #: a terminal, where a line may be written over; "fold": as prefix, equal lines once;
    #: "keyboard": all octets, both ways.
    style: str = "plain"
    prefix: bytes = b""
    #: Path of its log file, of the file for filtered lines, and what those have in them.
    file: str = ""
    filtered_file: str = ""
    filters: tuple[bytes, ...] = ()
    #: Its last words are wanted if the worker fails.
    last_words: bool = False

    @property
    def prefix_width(self) -> int:
        """Columns that the prefix takes: colours take none."""
        text = self.prefix.decode(errors="replace")
        escapes = text.split("\033[")[1:]
        return len(text) - sum(len(part.partition("m")[0]) + 3 for part in escapes)


class OutputPlan(Record):
    """The workers' streams in order, and what is for the writer (empty: it is not needed)."""

    streams: tuple[Streams, ...]
    writer: bytes
    #: What is left of the terminal's width beside a prefix.
    columns: int = 80


def plan(
    console: Console, around: Surroundings, workers: Sequence[WorkerPlace], folder: str | None
) -> OutputPlan:
    """Decide for one round. `folder`: the round's directory, None without files."""
    shown = [worker for worker in workers if _is_shown(console, worker)]
    streams, sources = [], []
    for worker in workers:
        its = _OneWorker(console, around, worker, worker in shown, len(shown), folder)
        streams.append(its.decide())
        sources += its.sources
    widest = max((source.prefix_width for source in sources if source.shown_on), default=0)
    writer = _packed(sources, console, around) if sources else b""
    return OutputPlan(tuple(streams), writer, max(20, around.columns - widest))


def _is_shown(console: Console, worker: WorkerPlace) -> bool:
    if console.tty_rank is not None:
        return worker.rank == console.tty_rank
    by_local_rank = console.local_ranks is None or worker.local_rank in console.local_ranks
    return by_local_rank and (console.ranks is None or worker.rank in console.ranks)


class _OneWorker:
    """The decision for one worker; `sources` are what the writer reads of it."""

    def __init__(
        self,
        console: Console,
        around: Surroundings,
        worker: WorkerPlace,
        is_shown: bool,
        shown: int,
        folder: str | None,
    ) -> None:
        self.sources: list[Source] = []
        self._console = console
        self._around = around
        self._worker = worker
        self._is_shown = is_shown
        self._is_alone = shown == 1
        self._folder = folder

    def decide(self) -> Streams:
        if self._is_shown and self._console.tty_rank is not None:
            self._read(STDOUT, shown_on=STDOUT, style="keyboard", last_words=True)
            return Streams("tty", "tty")
        in_file = [self._worker.folder and self._has(s) for s in (STDOUT, STDERR)]
        both_shown = self._is_shown and not any(in_file)
        if both_shown and self._around.same_file and not self._inherits(STDERR):
            return Streams(self._shown(STDOUT, last_words=True), "stdout")
        return Streams(self._stream(STDOUT), self._stream(STDERR))

    def _inherits(self, stream: int) -> bool:
        """What it writes goes straight to our own stream.

        A stderr that is no terminal does not: its last words are wanted.
        """
        mode = self._console.mode
        if mode is ConsoleMode.RAW:
            return True
        if mode is not ConsoleMode.AUTO or not self._is_alone:
            return False
        return self._around.is_terminal(stream) or (stream == STDOUT and not self._around.same_file)

    def _has(self, stream: int) -> bool:
        """It has a log file."""
        choices = (self._console.redirects, self._console.tee)
        return any(_chosen(choice, self._worker.local_rank, stream) for choice in choices)

    def _stream(self, stream: int) -> str:
        if self._worker.folder and self._has(stream):
            return self._to_file(stream)
        if not self._is_shown:
            if stream == STDOUT:
                return "null"
            self._read(stream, last_words=True)
            return "pipe"
        if self._inherits(stream):
            return "inherit"
        return self._shown(stream, last_words=stream == STDERR)

    def _shown(self, stream: int, *, last_words: bool) -> str:
        """It is read, and shown in whole lines."""
        terminal = self._around.is_terminal(stream)
        mode = self._console.mode
        style = "through" if self._is_alone else "plain"
        if mode is ConsoleMode.FOLD:
            style = "fold"
        elif terminal:
            style = "live"
        elif mode is ConsoleMode.PREFIX:
            style = "prefix"
        unchanged = style in ("through", "plain")
        prefix = b"" if unchanged else self._prefix(coloured=terminal)
        self._read(stream, shown_on=stream, style=style, prefix=prefix, last_words=last_words)
        return "pty" if terminal else "pipe"

    def _to_file(self, stream: int) -> str:
        teed = _chosen(self._console.tee, self._worker.local_rank, stream)
        console, worker = self._console, self._worker
        name = _NAMES[stream]
        filters = console.stdout_filters if stream == STDOUT else console.stderr_filters
        shown = teed and self._is_shown
        terminal = self._around.is_terminal(stream)
        self._read(
            stream,
            shown_on=stream if shown else 0,
            style="live" if terminal and shown else "prefix",
            prefix=_filled_in(console.template, worker).encode(errors="surrogateescape"),
            file=f"{worker.folder}/{name}.log",
            filtered_file=f"{self._folder}/filtered_{name}.log" if teed and filters else "",
            filters=tuple(text.encode(errors="surrogateescape") for text in filters),
            last_words=stream == STDERR,
        )
        return "pipe"

    def _read(self, stream: int, **how: object) -> None:
        worker = self._worker
        source = Source(worker.local_rank, worker.rank, _NAMES[stream])
        self.sources.append(replace(source, **how))

    def _prefix(self, *, coloured: bool) -> bytes:
        text = f"[{self._worker.rank}]"
        if coloured and self._around.colour:
            colour = _COLOURS[self._worker.rank % len(_COLOURS)]
            text = f"\033[{colour}m{text}\033[0m"
        return f"{text} ".encode()


def _chosen(choice: StreamChoice, local_rank: int, stream: int) -> bool:
    return any(rank in (None, local_rank) and bits & stream for rank, bits in choice)


def _filled_in(template: str, worker: WorkerPlace) -> str:
    """torchrun's template, as string.Template would fill it in; unknown names stay."""
    known = {
        "role_name": worker.role,
        "rank": str(worker.rank),
        "local_rank": str(worker.local_rank),
    }
    if "$" not in template:
        return template
    from string import Template

    return Template(template).safe_substitute(known)


# For the writer, which is forked from a process that has imported this


def _packed(sources: Sequence[Source], console: Console, around: Surroundings) -> bytes:
    facts = (around.same_file, around.columns, around.dumb, console.log_max_size or 0)
    return marshal.dumps((facts, [source._values() for source in sources]))


class Facts(Record):
    """What the writer is told beside the sources."""

    same_file: bool
    columns: int
    dumb: bool
    log_max_size: int


def unpack(packed: bytes) -> tuple[Facts, list[Source]]:
    """What `OutputPlan.writer` has in it."""
    facts, sources = marshal.loads(packed)
    return Facts(*facts), [Source(*fields) for fields in sources]
