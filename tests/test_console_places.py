"""Where output ends: files put aside whole, places that stand still, and wake-ups that come."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness import eventually
from phalanx.console import files as files_module
from phalanx.console.files import Files
from phalanx.console.places import _FULL, _LOW, LogFile, Place, Stream
from phalanx.console.plan import Source


class Kept:
    """A sink that keeps what it gets, once it may."""

    name = "kept"

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.got: list[bytes] = []

    def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        assert self.may_write.wait(60)
        self.got += map(bytes, buffers)


def _done(place: Place) -> None:
    eventually(place.await_done, what="all is written")


def _written(sink: LogFile | Stream, *pieces: bytes) -> Place:
    place = Place(lambda: None)
    for piece in pieces:
        place.put(sink, [piece])
    _done(place)
    return place


# Log files


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_log_file_without_a_size_grows(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"from before\n")

    place = _written(LogFile(str(path), 0), *[b"line\n"] * 1000)

    assert path.read_bytes() == b"from before\n" + b"line\n" * 1000
    assert not place.troubles
    assert os.listdir(tmp_path) == ["stdout.log"]


@pytest.mark.parametrize("seed", range(20))
def test_files_put_aside_hold_whole_lines_the_newest_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path, size = tmp_path / "stdout.log", 300
    lines = [b"%d " % number + b"x" * chance.randrange(120) + b"\n" for number in range(200)]
    left, blocks = list(lines), []
    while left:
        count = chance.randrange(1, 12)
        blocks.append(b"".join(left[:count]))
        left = left[count:]

    _written(LogFile(str(path), size), *blocks)

    names = ["stdout.log.3", "stdout.log.2", "stdout.log.1", "stdout.log"]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    kept = [line for name in names for line in _lines(tmp_path / name)]
    assert kept == lines[-len(kept) :]
    for name in names:
        assert (tmp_path / name).stat().st_size <= size
    for older, newer in itertools.pairwise(names):
        first = _lines(tmp_path / newer)[0]
        assert (tmp_path / older).stat().st_size + len(first) > size  # put aside when it was full


def test_a_line_that_is_longer_than_a_file_has_one_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    _written(LogFile(str(path), 10), b"a\n" + b"x" * 30 + b"\nb\n")

    assert (tmp_path / "stdout.log.2").read_bytes() == b"a\n"
    assert (tmp_path / "stdout.log.1").read_bytes() == b"x" * 30 + b"\n"
    assert path.read_bytes() == b"b\n"


def test_what_a_file_holds_from_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"12345678\n")

    _written(LogFile(str(path), 10), b"new\n")

    assert (tmp_path / "stdout.log.1").read_bytes() == b"12345678\n"
    assert path.read_bytes() == b"new\n"


def test_a_file_that_nothing_is_written_to_is_there(tmp_path: Path) -> None:
    place = Place(lambda: None)
    place.put(LogFile(str(tmp_path / "stdout.log"), 100), [])
    _done(place)

    assert (tmp_path / "stdout.log").read_bytes() == b""


# Trouble


def test_a_full_place_is_told_of_for_each_write_and_the_thread_goes_on(tmp_path: Path) -> None:
    full, good = LogFile("/dev/full", 0), LogFile(str(tmp_path / "good"), 0)
    place = Place(lambda: None)
    place.put(full, [b"lost\n"])
    place.put(good, [b"kept\n"])
    place.put(full, [b"lost\n"])
    _done(place)

    assert [trouble.error.errno for trouble in place.troubles] == [errno.ENOSPC] * 2
    assert {trouble.sink for trouble in place.troubles} == {full}
    assert (tmp_path / "good").read_bytes() == b"kept\n"


def test_a_directory_that_is_gone_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "stdout.log"
    file = LogFile(str(path), 100)
    assert _written(file, b"lost\n").troubles[0].error.errno == errno.ENOENT

    path.parent.mkdir()
    _written(file, b"kept\n")

    assert path.read_bytes() == b"kept\n"


def test_files_that_cannot_be_put_aside_do_not_stop_the_thread(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    file = LogFile(str(path), 10)
    _written(file, b"12345678\n")
    (tmp_path / "stdout.log.2").write_bytes(b"")
    (tmp_path / "stdout.log.3").mkdir()

    place = _written(file, b"23456789\n", b"34567890\n")

    assert place.troubles
    (tmp_path / "stdout.log.3").rmdir()
    _written(file, b"45678901\n")
    assert path.read_bytes() == b"45678901\n"


def test_a_stream_that_somebody_made_non_blocking_is_written_all_the_same() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    place = Place(lambda: None)
    place.put(Stream(writing, "stdout"), [b"x" * 300_000])

    got = 0
    while got < 300_000:
        got += len(os.read(reading, 65536))
    _done(place)

    assert not place.troubles
    os.close(reading)
    os.close(writing)


# Standing still


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A file that nobody reads: to open it takes for ever. Whoever hangs at the end is let go."""
    path = tmp_path / "hung"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def test_a_place_that_stands_still_says_since_when(fifo: Path) -> None:
    place = Place(lambda: None)
    assert place.busy_since is None

    place.put(LogFile(str(fifo), 0), [b"x\n"])

    eventually(lambda: place.busy_since)
    assert not place.await_done()
    assert place.waiting == 3


def _source(path: Path) -> Source:
    return Source(0, 0, "stdout", file=str(path))


def test_hung_files_cost_one_line_and_when_they_move_again_one_more(fifo: Path) -> None:
    files = Files(lambda: None)
    files.begin_round([_source(fifo)], 0)
    files.put(_source(fifo), [b"x\n" * _FULL])
    since = eventually(lambda: files._place and files._place.busy_since)

    assert files.are_full
    assert not files.are_written()
    assert list(files.look_after(since + files_module.HUNG_S - 0.1)) == []
    hung = list(files.look_after(since + files_module.HUNG_S + 0.1))
    assert len(hung) == 1
    assert "does not answer" in hung[0]
    assert not files.are_full
    assert files.are_written()
    files.put(_source(fifo), [b"lost\n"])
    assert list(files.look_after(since + 60)) == []
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        again = eventually(lambda: _read_on(reader, list(files.look_after(since + 60))))
    finally:
        os.close(reader)
    assert again == ["the log directory answers again; 5 octets are lost"]
    assert list(files.look_after(since + 61)) == []


def _read_on(reader: int, answer: list[str]) -> list[str]:
    try:
        os.read(reader, 1 << 20)
    except BlockingIOError:
        pass
    return answer


def test_many_files_in_a_full_place_cost_one_line() -> None:
    files = Files(lambda: None)
    source = Source(0, 0, "stdout", file="/dev/full")
    files.begin_round([source], 0)
    for _ in range(100):
        files.put(source, [b"x\n"])
    eventually(files.are_written)

    lines = list(files.look_after(0.0))

    assert lines == [
        "the log file /dev/full cannot be written: No space left on device; the job goes on"
    ]


def test_filtered_lines_have_their_prefix_and_an_end(tmp_path: Path) -> None:
    filtered = tmp_path / "filtered.log"
    source = Source(
        *(0, 0, "stdout"),
        prefix=b"[0]:",
        file=str(tmp_path / "stdout.log"),
        filtered_file=str(filtered),
        filters=(b"loss", b"lr"),
    )
    files = Files(lambda: None)
    files.begin_round([source], 0)
    files.put(source, [b"loss 1\nno", memoryview(b"ne\nlr 2\n")])
    files.put(source, [b"none\n"])
    files.put(source, [b"loss without end"])
    eventually(files.are_written)

    assert filtered.read_bytes() == b"[0]:loss 1\n[0]:lr 2\n[0]:loss without end\n"


def test_a_line_is_a_line_by_its_newline_alone(tmp_path: Path) -> None:
    """A carriage return, as of a bar, does not make one."""
    source = Source(
        *(0, 0, "stdout"),
        file=str(tmp_path / "stdout.log"),
        filtered_file=str(tmp_path / "filtered.log"),
        filters=(b"loss",),
    )
    files = Files(lambda: None)
    files.begin_round([source], 0)
    files.put(source, [b"10% loss\r20%\nloss 3\r\n"])
    eventually(files.are_written)

    assert (tmp_path / "filtered.log").read_bytes() == b"10% loss\r20%\nloss 3\r\n"


def test_the_files_of_a_thousand_rounds_leave_no_descriptors(tmp_path: Path) -> None:
    files = Files(lambda: None)
    before = len(os.listdir("/proc/self/fd"))
    for attempt in range(1000):
        source = _source(tmp_path / f"{attempt}.log")
        files.begin_round([source], 0)
        files.put(source, [b"x\n"])
        files.end_round()
    eventually(files.are_written)

    assert len(os.listdir(tmp_path)) == 1000
    assert len(os.listdir("/proc/self/fd")) <= before


# Waiting


def test_a_place_is_full_until_half_of_it_is_written() -> None:
    woken = threading.Event()
    place, sink = Place(woken.set), Kept()
    sink.may_write.clear()
    place.put(sink, [b"x" * (_FULL - 2)])
    assert not place.is_full
    place.put(sink, [b"x" * 10])

    assert place.is_full
    assert place.waiting > _LOW
    assert not woken.is_set()
    sink.may_write.set()
    assert woken.wait(20)
    assert not place.is_full


def test_no_wake_up_is_lost_among_thousands_of_small_writes() -> None:
    """Whoever waits whenever it is told to, and until it is woken, gets to the end."""
    woken = threading.Event()
    place, sink = Place(woken.set), Kept()
    expected = [b"%d" % number for number in range(20_000)]
    for number, piece in enumerate(expected):
        place.put(sink, [piece])
        if number % 3 == 0:
            _sleep_until(place.await_done, woken)
    _sleep_until(place.await_done, woken)

    assert sink.got == expected


def test_no_wake_up_is_lost_when_it_is_full_again_and_again() -> None:
    woken = threading.Event()
    place, sink = Place(woken.set), Kept()
    for _ in range(3000):
        place.put(sink, [b"x" * (_FULL // 3)])
        sink.got.clear()
        _sleep_until(lambda: not place.is_full, woken)
    _sleep_until(place.await_done, woken)

    assert place.waiting == 0


def _sleep_until(is_so: object, woken: threading.Event) -> None:
    while not is_so():  # type: ignore[operator]
        assert woken.wait(20), "asleep for ever"
        woken.clear()


def test_what_is_put_by_turns_comes_in_order_in_each_place(tmp_path: Path) -> None:
    place = Place(lambda: None)
    sinks = [Kept(), Kept(), Kept()]
    for number in range(5000):
        place.put(sinks[number * number % 3], [b"%d" % number])
    _done(place)

    for sink in sinks:
        assert sink.got == sorted(sink.got, key=int)
    assert sum(len(sink.got) for sink in sinks) == 5000
