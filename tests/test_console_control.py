"""Frames and descriptors over the socket pair between the fork server and the writer."""

from __future__ import annotations

import _socket as net
import os
import threading
import time
from collections.abc import Iterator

import pytest

from harness import eventually
from phalanx.console import control
from phalanx.console.control import WriterLink

KINDS = (
    control.BeginRound(b"a plan"),
    control.TakeSources(((0, "stdout"), (449, "stderr"))),
    control.WorkerGone(7),
    control.EndRound((1, 2)),
    control.SayLine("a line, \udcff and 字"),
    control.Resize(80, 24),
    control.Finish(report_follows=True),
    control.Hurry(),
    control.Tails(((1, b"its last\nwords"),)),
    control.Warn("the disk is full"),
    control.AllPrinted(),
)


@pytest.fixture
def links() -> Iterator[tuple[WriterLink, WriterLink]]:
    """The fork server's end and the writer's."""
    ends = net.socketpair(net.AF_UNIX, net.SOCK_SEQPACKET)
    ours, theirs = map(WriterLink, ends)
    yield ours, theirs
    ours.close()
    theirs.close()
    for fd in theirs.fds:
        os.close(fd)


def _all_of(link: WriterLink, sender: WriterLink, count: int) -> list[control.ControlMessage]:
    """So many messages, while the sender sends what it could not before."""
    messages: list[control.ControlMessage] = []

    def came() -> bool:
        sender.flush()
        more, there = link.receive()
        messages.extend(more)
        assert there
        return len(messages) >= count

    eventually(came)
    return messages


@pytest.mark.parametrize("message", KINDS, ids=lambda message: type(message).__name__)
def test_each_message_arrives_as_it_was(
    links: tuple[WriterLink, WriterLink], message: control.ControlMessage
) -> None:
    ours, theirs = links
    ours.send(message)

    assert theirs.receive() == ([message], True)
    assert theirs.receive() == ([], True)


def test_messages_arrive_in_order(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    sent = [control.WorkerGone(number) for number in range(500)]
    for message in sent:
        ours.send(message)

    assert _all_of(theirs, ours, 500) == sent


@pytest.mark.parametrize("size", [65_000, 66_000, 200_000, 900_000])
def test_a_plan_of_any_size_arrives(links: tuple[WriterLink, WriterLink], size: int) -> None:
    """450 workers with two long paths each are 200,000 octets."""
    ours, theirs = links
    sent = [control.BeginRound(os.urandom(size)), control.Hurry()]
    for message in sent:
        ours.send(message)

    assert _all_of(theirs, ours, 2) == sent


def test_the_last_words_of_450_workers_arrive(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    tails = control.Tails(tuple((rank, os.urandom(1 << 14)) for rank in range(450)))
    theirs.send(tails)

    assert theirs.wants_write
    assert _all_of(ours, theirs, 1) == [tails]
    assert not theirs.wants_write


def _files(count: int) -> list[tuple[int, str, int]]:
    """Descriptors, each of a file that has its own number in it."""
    made = []
    for number in range(count):
        fd = os.memfd_create("numbered")
        os.write(fd, b"%d" % number)
        made.append((number, "stdout", fd))
    return made


@pytest.mark.parametrize("count", [0, 1, 200, 201, 450])
def test_each_descriptor_comes_with_its_name(
    links: tuple[WriterLink, WriterLink], count: int
) -> None:
    ours, theirs = links
    sources = _files(count)
    ours.begin_round(b"plan", sources)
    for _number, _name, fd in sources:
        os.close(fd)

    begin, *takes = _all_of(theirs, ours, 1 + (count + 199) // 200)
    assert begin == control.BeginRound(b"plan")
    seen = 0
    for take in takes:
        assert isinstance(take, control.TakeSources)
        fds = theirs.take_fds(len(take.keys))
        assert len(fds) == len(take.keys)
        for (number, name), fd in zip(take.keys, fds, strict=True):
            assert (number, name) == (seen, "stdout")
            assert os.pread(fd, 10, 0) == b"%d" % number
            os.close(fd)
            seen += 1
    assert seen == count
    assert theirs.fds == []


def test_descriptors_and_a_large_plan_go_together(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    plan, sources = os.urandom(500_000), _files(300)
    got: list[control.ControlMessage] = []
    reader = threading.Thread(target=lambda: got.extend(_all_of(theirs, theirs, 3)))
    reader.start()
    ours.begin_round(plan, sources)
    reader.join()
    for _number, _name, fd in sources:
        os.close(fd)

    assert got[0] == control.BeginRound(plan)
    assert [len(take.keys) for take in got[1:]] == [200, 100]  # type: ignore[union-attr]
    assert len(theirs.fds) == 300


def test_a_thousand_rounds_leave_no_descriptors(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    sources = _files(3)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        ours.begin_round(b"plan", sources)
        _all_of(theirs, ours, 2)
        for fd in theirs.take_fds(3):
            os.close(fd)

    assert len(os.listdir("/proc/self/fd")) == before
    for _number, _name, fd in sources:
        os.close(fd)


def test_a_peer_that_is_gone_is_noticed_by_receive_after_what_it_said(
    links: tuple[WriterLink, WriterLink],
) -> None:
    ours, theirs = links
    theirs.send(control.AllPrinted())
    theirs.close()

    assert ours.receive() == ([control.AllPrinted()], False)
    ours.send(control.Hurry())
    assert not ours.wants_write
    assert ours.receive() == ([], False)


def test_a_round_cannot_begin_without_a_peer(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    theirs.close()
    sources = _files(1)

    with pytest.raises(OSError, match="pipe"):
        ours.begin_round(b"plan", sources)
    os.close(sources[0][2])


def test_a_peer_that_does_not_read_holds_up_a_round_for_a_moment_only(
    links: tuple[WriterLink, WriterLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _theirs = links
    monkeypatch.setattr(control, "_SEND_TIMEOUT_S", 0.2)
    sources = _files(1)
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        ours.begin_round(bytes(900_000), sources)
    os.close(sources[0][2])

    assert time.monotonic() - began < 5.0


def test_orders_to_a_peer_that_does_not_read_take_little_memory(
    links: tuple[WriterLink, WriterLink],
) -> None:
    ours, _theirs = links
    for _ in range(3000):
        ours.send(control.SayLine("x" * 1000))

    assert len(ours._out) <= 1.1 * control._MOST_WAITING


def test_orders_that_are_dropped_are_dropped_whole(links: tuple[WriterLink, WriterLink]) -> None:
    ours, theirs = links
    lines = [control.SayLine(f"{number} " + "x" * 1000) for number in range(3000)]
    for line in lines:
        ours.send(line)

    came = _all_of(theirs, ours, 500)
    while ours.wants_write:
        came += _all_of(theirs, ours, 1)
    came += theirs.receive()[0]
    assert came == lines[: len(came)]
    ours.send(control.Hurry())
    assert theirs.receive() == ([control.Hurry()], True)
