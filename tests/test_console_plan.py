"""What each worker's streams are: a table of rules, each row a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.console.plan import Source, Surroundings, WorkerPlace, plan, unpack
from phalanx.job import Console, ConsoleMode
from phalanx.record import Record

SCREEN = Surroundings(
    stdin_is_terminal=True,
    stdout_is_terminal=True,
    stderr_is_terminal=True,
    same_file=True,
    columns=100,
)
#: `phalanx ... >out 2>err`, `2>&1 | cat`, `>out` and `2>err`.
TWO_FILES = Surroundings()
ONE_PIPE = Surroundings(same_file=True)
ERRORS_ON_SCREEN = Surroundings(stderr_is_terminal=True)
OUTPUT_ON_SCREEN = Surroundings(stdout_is_terminal=True)

RAW = Console(mode=ConsoleMode.RAW)
PREFIX = Console(mode=ConsoleMode.PREFIX)
FOLD = Console(mode=ConsoleMode.FOLD)
AUTO = Console()
ALL_TO_FILES = Console(redirects=((None, 3),))
ALL_TEED = Console(tee=((None, 3),))


class Row(Record):
    """Of the last of so many workers: its streams, and what the writer reads of it."""

    says: str
    console: Console
    around: Surroundings
    workers: int
    streams: tuple[str, str]
    #: (name, shown on, style, prefix, is its end kept?)
    read: tuple[tuple[str, int, str, bytes, bool], ...] = ()


PREFIXED = b"[default1]:"
TABLE = (
    Row("One worker alone on a terminal has it.", AUTO, SCREEN, 1, ("inherit", "inherit")),
    Row(
        "One worker into one pipe is read, both streams in their order, octets as they come.",
        AUTO,
        ONE_PIPE,
        1,
        ("pipe", "stdout"),
        (("stdout", 1, "through", b"", True),),
    ),
    Row(
        "Of one worker, stderr is read where it is no terminal: it explains a failure.",
        AUTO,
        TWO_FILES,
        1,
        ("inherit", "pipe"),
        (("stderr", 2, "through", b"", True),),
    ),
    Row(
        "The same with stdout on a terminal.",
        AUTO,
        OUTPUT_ON_SCREEN,
        1,
        ("inherit", "pipe"),
        (("stderr", 2, "through", b"", True),),
    ),
    Row(
        "One worker's stderr on a terminal is left to it.",
        AUTO,
        ERRORS_ON_SCREEN,
        1,
        ("inherit", "inherit"),
    ),
    Row(
        "Several on a terminal: one terminal each for both streams, lines with the rank.",
        AUTO,
        SCREEN,
        2,
        ("pty", "stdout"),
        (("stdout", 1, "live", b"[1] ", True),),
    ),
    Row(
        "Several into one pipe: whole lines as they are, both streams in order.",
        AUTO,
        ONE_PIPE,
        2,
        ("pipe", "stdout"),
        (("stdout", 1, "plain", b"", True),),
    ),
    Row(
        "Several into two files: whole lines as they are, and the end of stderr is kept.",
        AUTO,
        TWO_FILES,
        2,
        ("pipe", "pipe"),
        (("stdout", 1, "plain", b"", False), ("stderr", 2, "plain", b"", True)),
    ),
    Row(
        "Each stream goes by what it leads to: stdout on a terminal, stderr in a file.",
        AUTO,
        OUTPUT_ON_SCREEN,
        2,
        ("pty", "pipe"),
        (("stdout", 1, "live", b"[1] ", False), ("stderr", 2, "plain", b"", True)),
    ),
    Row(
        "And the other way round.",
        AUTO,
        ERRORS_ON_SCREEN,
        2,
        ("pipe", "pty"),
        (("stdout", 1, "plain", b"", False), ("stderr", 2, "live", b"[1] ", True)),
    ),
    Row("Raw on a terminal is raw.", RAW, SCREEN, 2, ("inherit", "inherit")),
    Row("Raw into files is raw: even stderr.", RAW, TWO_FILES, 2, ("inherit", "inherit")),
    Row("Raw into a pipe is raw.", RAW, ONE_PIPE, 2, ("inherit", "inherit")),
    Row(
        "With prefix, one worker has a prefix in a pipe, too.",
        PREFIX,
        ONE_PIPE,
        1,
        ("pipe", "stdout"),
        (("stdout", 1, "prefix", b"[0] ", True),),
    ),
    Row(
        "With prefix, one worker has a prefix on a terminal, too.",
        PREFIX,
        SCREEN,
        1,
        ("pty", "stdout"),
        (("stdout", 1, "live", b"[0] ", True),),
    ),
    Row(
        "Prefixes into two files.",
        PREFIX,
        TWO_FILES,
        2,
        ("pipe", "pipe"),
        (("stdout", 1, "prefix", b"[1] ", False), ("stderr", 2, "prefix", b"[1] ", True)),
    ),
    Row(
        "Fold on a terminal.",
        FOLD,
        SCREEN,
        2,
        ("pty", "stdout"),
        (("stdout", 1, "fold", b"[1] ", True),),
    ),
    Row(
        "Fold into two files.",
        FOLD,
        TWO_FILES,
        2,
        ("pipe", "pipe"),
        (("stdout", 1, "fold", b"[1] ", False), ("stderr", 2, "fold", b"[1] ", True)),
    ),
    Row(
        "Who is not shown writes stdout nowhere, and its stderr is read all the same.",
        Console(local_ranks=(0,)),
        SCREEN,
        2,
        ("null", "pipe"),
        (("stderr", 0, "plain", b"", True),),
    ),
    Row(
        "Who is not shown is not shown raw either.",
        Console(mode=ConsoleMode.RAW, ranks=(0,)),
        SCREEN,
        2,
        ("null", "pipe"),
        (("stderr", 0, "plain", b"", True),),
    ),
    Row(
        "Of several workers the only one that is shown is as one worker.",
        Console(local_ranks=(1,)),
        SCREEN,
        2,
        ("inherit", "inherit"),
    ),
    Row(
        "Both filters must let a worker through.",
        Console(local_ranks=(1,), ranks=(0,)),
        SCREEN,
        2,
        ("null", "pipe"),
        (("stderr", 0, "plain", b"", True),),
    ),
    Row(
        "Redirected streams are no terminals, are not shown, and have their files.",
        ALL_TO_FILES,
        SCREEN,
        2,
        ("pipe", "pipe"),
        (("stdout", 0, "prefix", PREFIXED, False), ("stderr", 0, "prefix", PREFIXED, True)),
    ),
    Row(
        "Teed streams on a terminal are live lines with torchrun's prefix.",
        ALL_TEED,
        SCREEN,
        2,
        ("pipe", "pipe"),
        (("stdout", 1, "live", PREFIXED, False), ("stderr", 2, "live", PREFIXED, True)),
    ),
    Row(
        "Teed streams in files have torchrun's prefix.",
        ALL_TEED,
        TWO_FILES,
        2,
        ("pipe", "pipe"),
        (("stdout", 1, "prefix", PREFIXED, False), ("stderr", 2, "prefix", PREFIXED, True)),
    ),
    Row(
        "Teed, but not shown: the file only.",
        Console(tee=((None, 3),), local_ranks=(0,)),
        SCREEN,
        2,
        ("pipe", "pipe"),
        (("stdout", 0, "prefix", PREFIXED, False), ("stderr", 0, "prefix", PREFIXED, True)),
    ),
    Row(
        "With stderr redirected, stdout is what it would be: here raw, since it is alone.",
        Console(redirects=((None, 2),)),
        SCREEN,
        1,
        ("inherit", "pipe"),
        (("stderr", 0, "prefix", b"[default0]:", True),),
    ),
    Row(
        "With stdout redirected, stderr of several has a terminal of its own.",
        Console(redirects=((None, 1),)),
        SCREEN,
        2,
        ("pipe", "pty"),
        (("stdout", 0, "prefix", PREFIXED, False), ("stderr", 2, "live", b"[1] ", True)),
    ),
    Row(
        "What is chosen for another local rank is not for this one.",
        Console(redirects=((0, 3),)),
        SCREEN,
        2,
        ("pty", "stdout"),
        (("stdout", 1, "live", b"[1] ", True),),
    ),
    Row(
        "Raw and redirected: redirected.",
        Console(mode=ConsoleMode.RAW, redirects=((1, 1),)),
        SCREEN,
        2,
        ("pipe", "inherit"),
        (("stdout", 0, "prefix", PREFIXED, False),),
    ),
    Row(
        "The rank with the keyboard has a terminal for itself.",
        Console(tty_rank=1),
        SCREEN,
        2,
        ("tty", "tty"),
        (("stdout", 1, "keyboard", b"", True),),
    ),
    Row(
        "Beside the rank with the keyboard nobody is shown.",
        Console(tty_rank=0),
        SCREEN,
        2,
        ("null", "pipe"),
        (("stderr", 0, "plain", b"", True),),
    ),
    Row(
        "Beside the rank with the keyboard files are written all the same.",
        Console(tty_rank=0, tee=((None, 3),)),
        SCREEN,
        2,
        ("pipe", "pipe"),
        (("stdout", 0, "prefix", PREFIXED, False), ("stderr", 0, "prefix", PREFIXED, True)),
    ),
)


def _workers(count: int) -> list[WorkerPlace]:
    return [WorkerPlace(rank, rank, "default", f"/logs/{rank}") for rank in range(count)]


def _planned(console: Console, around: Surroundings, count: int) -> tuple[Any, list[Source]]:
    planned = plan(console, around, _workers(count), "/logs")
    return planned, unpack(planned.writer)[1] if planned.writer else []


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.says)
def test_rule(row: Row) -> None:
    planned, sources = _planned(row.console, row.around, row.workers)
    last = row.workers - 1
    read = [
        (each.name, each.shown_on, each.style, each.prefix, each.last_words)
        for each in sources
        if each.local_rank == last
    ]

    assert (planned.streams[last].stdout, planned.streams[last].stderr) == row.streams
    assert tuple(read) == row.read


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.says)
def test_what_is_read_is_what_has_a_pipe_or_a_terminal(row: Row) -> None:
    planned, sources = _planned(row.console, row.around, row.workers)
    made = [
        (local_rank, name)
        for local_rank, its in enumerate(planned.streams)
        for name, word in (("stdout", its.stdout), ("stderr", its.stderr))
        if word in ("pipe", "pty") or (word, name) == ("tty", "stdout")
    ]

    assert [(each.local_rank, each.name) for each in sources] == made


@pytest.mark.parametrize("around", [SCREEN, TWO_FILES, ONE_PIPE, ERRORS_ON_SCREEN])
@pytest.mark.parametrize("console", [AUTO, PREFIX, FOLD, ALL_TEED, ALL_TO_FILES])
def test_the_end_of_what_a_worker_says_of_its_failure_is_kept_once(
    console: Console, around: Surroundings
) -> None:
    """Of several workers, one stream each: that which stderr goes to."""
    _plan, sources = _planned(console, around, 3)

    assert [each.local_rank for each in sources if each.last_words] == [0, 1, 2]


def test_each_teed_stream_has_its_file_and_the_filtered_lines_have_one_for_all() -> None:
    console = Console(tee=((None, 3),), stdout_filters=("loss",), stderr_filters=("err", "warn"))

    _plan, sources = _planned(console, TWO_FILES, 2)

    assert [(each.file, each.filtered_file, each.filters) for each in sources] == [
        ("/logs/0/stdout.log", "/logs/filtered_stdout.log", (b"loss",)),
        ("/logs/0/stderr.log", "/logs/filtered_stderr.log", (b"err", b"warn")),
        ("/logs/1/stdout.log", "/logs/filtered_stdout.log", (b"loss",)),
        ("/logs/1/stderr.log", "/logs/filtered_stderr.log", (b"err", b"warn")),
    ]


def test_redirected_lines_are_not_filtered() -> None:
    console = Console(redirects=((None, 3),), stdout_filters=("loss",))

    _plan, sources = _planned(console, TWO_FILES, 1)

    assert [each.filtered_file for each in sources] == ["", ""]


def test_without_a_directory_there_are_no_files() -> None:
    workers = [WorkerPlace(0, 0, "default", None), WorkerPlace(1, 1, "default", None)]

    planned = plan(ALL_TEED, ONE_PIPE, workers, None)

    assert not any(source.file for source in unpack(planned.writer)[1])
    assert [(its.stdout, its.stderr) for its in planned.streams] == [("pipe", "stdout")] * 2


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("[${role_name}${local_rank}]:", b"[trainer1]:"),
        ("$rank of ${world} > ", b"5 of ${world} > "),
        ("", b""),
        ("plain ", b"plain "),
    ],
)
def test_the_template_of_tee_is_filled_in_and_what_it_does_not_know_stays(
    template: str, prefix: bytes
) -> None:
    worker = WorkerPlace(1, 5, "trainer", "/logs/1")
    console = Console(tee=((None, 1),), template=template)

    planned = plan(console, TWO_FILES, [worker], "/logs")

    assert unpack(planned.writer)[1][0].prefix == prefix


def test_prefixes_have_colours_on_a_terminal_that_welcomes_them() -> None:
    around = SCREEN.__dict__ | {"colour": True}

    planned, sources = _planned(AUTO, Surroundings(**around), 11)

    assert sources[0].prefix == b"\x1b[36m[0]\x1b[0m "
    assert sources[0].prefix != sources[1].prefix
    assert sources[10].prefix_width == len("[10] ")
    assert planned.columns == 100 - len("[10] ")


def test_a_terminal_behind_a_prefix_is_never_narrower_than_20_columns() -> None:
    planned, _sources = _planned(AUTO, Surroundings(**(SCREEN.__dict__ | {"columns": 10})), 2)

    assert planned.columns == 20


def test_nobody_is_read_so_there_is_no_writer() -> None:
    planned, _sources = _planned(RAW, SCREEN, 4)

    assert planned.writer == b""


def test_the_writer_is_told_of_the_size_of_log_files() -> None:
    planned = plan(Console(log_max_size=1000), TWO_FILES, _workers(2), "/logs")

    facts, _sources = unpack(planned.writer)

    assert (facts.same_file, facts.columns, facts.log_max_size) == (False, 80, 1000)
