"""The writer, as a process: what is complete, who waits for whom, and how it ends."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import SLACK, eventually
from phalanx.console import control
from phalanx.console.control import EndRound, Finish, Hurry, SayLine, WorkerGone
from phalanx.console.plan import Source
from writer_process import WriterProcess, fill, read_until


def plain(local_rank: int, name: str = "stdout", **more: object) -> Source:
    shown_on = 1 if name == "stdout" else 2
    return Source(
        **{"local_rank": local_rank, "rank": local_rank, "name": name, "shown_on": shown_on, **more}
    )


def styled(local_rank: int, style: str, name: str = "stdout", **more: object) -> Source:
    prefix = f"[{local_rank}] ".encode()
    return plain(local_rank, name, style=style, prefix=prefix, **more)


# What is complete


def test_what_a_dead_worker_has_written_is_all_printed() -> None:
    """To the last octet, though a helper of it still has its pipe."""
    text = b"0123456\n" * 8000 + b"without an end"
    with WriterProcess(plain(0)) as writer:
        writer.write(0, text)
        writer.order(WorkerGone(0), Finish(report_follows=False))

        assert writer.rest()[0] == text


def test_the_end_of_a_round_does_not_wait_for_helpers_that_have_the_pipes() -> None:
    with WriterProcess(plain(0)) as writer:
        writer.write(0, b"a line\nand a half")

        assert writer.end_round() == control.Tails(())
        assert writer.finish()[0] == b"a line\nand a half"


@pytest.mark.parametrize("round_number", range(10))
def test_a_round_ends_though_its_pipes_end_at_the_same_time(round_number: int) -> None:
    with WriterProcess(*[plain(rank) for rank in range(20)]) as writer:
        for rank in range(20):
            writer.write(rank, b"last\n")
        writer.order(EndRound(()))
        writer.let_workers_go()

        writer.hears(control.Tails)
        assert writer.finish()[0] == b"last\n" * 20


def test_the_end_of_a_round_gives_the_last_words_of_those_who_failed() -> None:
    sources = [plain(rank, "stderr", last_words=True) for rank in range(3)]
    with WriterProcess(*sources) as writer:
        for rank in range(3):
            writer.write(rank, b"I am %d\n" % rank, "stderr")
        writer.order(WorkerGone(1))

        assert writer.end_round((1, 2)).tails == ((1, b"I am 1\n"), (2, b"I am 2\n"))
        assert writer.end_round((0,)).tails == ()


def test_the_last_words_of_many_arrive_at_whoever_takes_his_time() -> None:
    sources = [plain(rank, "stderr", shown_on=0, last_words=True) for rank in range(60)]
    words = b"0123456789abcde\n" * 1024
    with WriterProcess(*sources) as writer:
        for rank in range(60):
            writer.write(rank, words, "stderr")
        writer.order(EndRound(tuple(range(60))), Finish(report_follows=False))
        select.select((), (), (), 0.3)  # in which it cannot send all

        assert writer.hears(control.Tails).tails == tuple((rank, words) for rank in range(60))
        writer.hears(control.AllPrinted)


def test_lines_that_wait_for_others_are_printed_at_the_end() -> None:
    sources = [styled(rank, "fold") for rank in range(2)]
    with WriterProcess(*sources) as writer:
        writer.write(0, b"only this one\n")
        writer.let_workers_go()
        writer.order(Finish(report_follows=False))

        assert writer.rest()[0] == b"[0] only this one\n"


@pytest.mark.parametrize("same_file", [False, True])
def test_lines_are_folded_whether_or_not_both_streams_are_one(same_file: bool) -> None:
    sources = [styled(rank, "fold") for rank in range(3)]
    with WriterProcess(*sources, same_file=same_file) as writer:
        for rank in range(3):
            writer.write(rank, b"epoch 1\n")

        assert writer.reads(b"\n") == b"[0-2] epoch 1\n"


def test_folded_lines_are_tame() -> None:
    with WriterProcess(styled(0, "fold")) as writer:
        writer.write(0, b"10%\r20%\r\n\x1b[2Jcleared\n")

        assert writer.reads(b"cleared\n") == b"[0] 20%\n[0] cleared\n"


def test_a_very_long_line_is_one_line() -> None:
    line = b"x" * 1_000_000 + b"\n"
    with WriterProcess(plain(0)) as writer:
        worker = threading.Thread(target=_write_all, args=(writer.worker[0, "stdout"], line))
        worker.start()
        out = writer.reads(b"\n")
        worker.join()

        assert out == line


def _write_all(fd: int, octets: bytes) -> None:
    while octets:
        octets = octets[os.write(fd, octets) :]


def test_another_line_does_not_go_on_in_one_without_an_end() -> None:
    with WriterProcess(plain(0), plain(1)) as writer:
        writer.write(0, b"dies here")
        writer.order(WorkerGone(0))
        out = writer.reads(b"here")
        writer.write(1, b"goes on\n")
        out += writer.reads(b"on\n")
        writer.order(WorkerGone(1))

        assert out == b"dies here\ngoes on\n"


def test_a_report_begins_a_line() -> None:
    with WriterProcess(plain(0)) as writer:
        writer.write(0, b"dies here")
        writer.end_round()
        writer.order(Finish(report_follows=True))

        assert writer.rest()[0] == b"dies here\n"


def test_our_own_lines_go_to_stderr_whole() -> None:
    with WriterProcess(plain(0, "stderr")) as writer:
        writer.write(0, b"dies here", "stderr")
        writer.order(WorkerGone(0), SayLine("that was rank 0"))

        assert writer.finish()[1] == b"dies here\nphalanx: that was rank 0\n"


# The terminal


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """A terminal: where its screen can be read, and what programs get."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    yield master, slave
    for fd in (master, slave):
        try:
            os.close(fd)
        except OSError:
            pass


def test_a_prompt_on_either_stream_is_seen_when_both_are_one(screen: tuple[int, int]) -> None:
    master, slave = screen
    sources = [styled(0, "live"), styled(0, "live", "stderr")]
    with WriterProcess(*sources, same_file=True, stdout=slave, stderr=slave) as writer:
        writer.write(0, b"on stderr? ", "stderr")
        read_until(master, b"[0] on stderr? ")
        writer.order(SayLine("a line of ours"))

        seen = read_until(master, b"ours\n[0] on stderr? ")
        assert seen.startswith(b"\r\x1b[Kphalanx: a line of ours\n")


def test_a_live_line_on_a_terminal_that_stands_still_costs_no_time(screen: tuple[int, int]) -> None:
    _master, slave = screen
    sources = [styled(0, "live"), styled(1, "live")]
    with WriterProcess(*sources, stdout=slave, stderr=slave, same_file=True) as writer:
        fill(writer.worker[1, "stdout"])
        writer.write(0, b"10%")

        assert writer.is_idle()


class Keyboard:
    """A terminal as stdin and as stdout, and a worker with a terminal of its own."""

    def __init__(self, screen: tuple[int, int]) -> None:
        self.master, slave = screen
        self.worker_master, self.worker = pty.openpty()
        modes = termios.tcgetattr(self.worker)
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self.worker, termios.TCSANOW, modes)
        source = Source(0, 0, "stdout", 1, "keyboard", last_words=True)
        self.writer = WriterProcess(stdin=slave, stdout=slave, stderr=slave)
        self.writer._sources = (source,)
        self.writer.begin_round(ends=[(self.worker_master, self.worker)])


def test_keys_reach_the_worker_and_its_answers_the_screen(screen: tuple[int, int]) -> None:
    keyboard = Keyboard(screen)
    with keyboard.writer as writer:
        writer.write(0, b"name? ")
        read_until(keyboard.master, b"name? ")
        os.write(keyboard.master, b"me\r")

        assert read_until(keyboard.worker, b"\n") == b"me\n"


def test_keys_are_taken_while_the_screen_stands_still(screen: tuple[int, int]) -> None:
    keyboard = Keyboard(screen)
    with keyboard.writer as writer:
        writer.write(0, b"ready")
        read_until(keyboard.master, b"ready")
        fill(keyboard.worker)
        os.write(keyboard.master, b"q")

        assert read_until(keyboard.worker, b"q") == b"q"
        os.write(keyboard.master, b"q")
        assert read_until(keyboard.worker, b"q") == b"q"
        os.set_blocking(keyboard.worker, True)
        read_until(keyboard.master, b"0123456\r\n" * 100)
        assert writer.process.poll() is None


def test_keys_that_the_worker_does_not_read_wait(screen: tuple[int, int]) -> None:
    keyboard = Keyboard(screen)
    typed = b"0123456789" * 2000
    with keyboard.writer as writer:
        writer.write(0, b"ready")
        read_until(keyboard.master, b"ready")
        os.set_blocking(keyboard.master, False)
        poll = select.poll()
        poll.register(keyboard.master, select.POLLOUT)
        left, got = typed, b""
        while left and poll.poll(300):
            left = left[os.write(keyboard.master, left[:1000]) :]
        assert writer.is_idle()
        while len(got) < len(typed) - len(left):
            got += read_until(keyboard.worker, b"0")

        assert got == typed[: len(got)]


def test_a_terminal_that_is_gone_costs_no_time(screen: tuple[int, int]) -> None:
    keyboard = Keyboard(screen)
    with keyboard.writer as writer:
        writer.write(0, b"ready")
        read_until(keyboard.master, b"ready")
        os.close(keyboard.master)

        assert writer.is_idle()


# Who waits for whom


def test_who_does_not_read_stdout_holds_up_its_workers_and_nobody_else(tmp_path: Path) -> None:
    shown, other = plain(0), plain(1, shown_on=0, file=str(tmp_path / "other.log"))
    with WriterProcess(shown, other) as writer:
        held = fill(writer.worker[0, "stdout"])
        for _ in range(100):
            writer.write(1, b"0123456\n" * 2000)
        eventually(lambda: (tmp_path / "other.log").stat().st_size == 1_600_000)

        assert held < 1 << 20
        assert writer.is_idle()
        out = writer.reads(b"\n")
        writer.let_workers_go()
        assert len(out + writer.finish()[0]) == held


def test_finish_waits_for_who_reads() -> None:
    with WriterProcess(plain(0)) as writer:
        held = fill(writer.worker[0, "stdout"])
        writer.end_round()
        writer.order(Finish(report_follows=False))
        assert writer.is_idle()
        assert writer.link.receive() == ([], True)

        assert len(writer.rest()[0]) == held


def test_whoever_is_in_a_hurry_waits_two_seconds_from_the_first_word() -> None:
    with WriterProcess(plain(0)) as writer:
        fill(writer.worker[0, "stdout"])
        writer.end_round()
        writer.order(Finish(report_follows=False), Hurry())
        began = time.monotonic()
        while writer.process.poll() is None and time.monotonic() - began < 2 * SLACK:
            writer.order(Hurry())
            select.select((), (), (), 0.2)

        assert writer.process.returncode == 0


def test_a_hurry_before_the_end_costs_no_time() -> None:
    with WriterProcess(plain(0)) as writer:
        writer.order(Hurry())
        select.select((), (), (), 2.1)

        assert writer.is_idle()
        writer.write(0, b"still here\n")
        assert writer.reads(b"here\n") == b"still here\n"


def test_hung_log_files_cost_a_line_and_the_screen_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "hung"
    os.mkfifo(path)
    with WriterProcess(plain(0, file=str(path)), hung_s=0.3) as writer:
        for _ in range(60):
            writer.write(0, b"0123456\n" * 1000)
            writer.reads(b"\n")
        assert "does not answer" in writer.hears(control.Warn).text
        writer.write(0, b"the last\n")
        writer.reads(b"the last\n")
        writer.end_round()
        writer.finish()

        assert not [each for each in writer.heard if isinstance(each, control.Warn)]


def test_a_full_stdout_costs_a_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, WriterProcess(plain(0), stdout=full) as writer:
        for _ in range(10):
            writer.write(0, b"lost\n")

        assert "No space left" in writer.hears(control.Warn).text
        writer.finish()


# Ends


def test_when_nobody_reads_stdout_any_more_workers_find_out() -> None:
    with WriterProcess(plain(0), plain(1, "stderr")) as writer:
        assert writer.process.stdout is not None
        writer.process.stdout.close()
        writer.process.stdout = None

        with pytest.raises(BrokenPipeError):
            eventually(lambda: writer.write(0, b"x\n"))
        writer.write(1, b"stderr goes on\n", "stderr")
        writer.end_round()
        assert writer.finish()[1] == b"stderr goes on\n"


def test_when_nobody_reads_stdout_any_more_files_go_on(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with WriterProcess(plain(0, file=str(path))) as writer:
        assert writer.process.stdout is not None
        writer.process.stdout.close()
        writer.process.stdout = None
        for _ in range(100):
            writer.write(0, b"0123456\n" * 2000)
        writer.end_round()
        writer.finish()

        assert path.stat().st_size == 1_600_000


def test_paused_workers_find_out_too_that_nobody_reads() -> None:
    with WriterProcess(plain(0)) as writer:
        fill(writer.worker[0, "stdout"])
        assert writer.process.stdout is not None
        writer.process.stdout.close()
        writer.process.stdout = None
        poll = select.poll()
        poll.register(writer.worker[0, "stdout"], 0)

        assert eventually(lambda: poll.poll(0))[0][1] & select.POLLERR


@pytest.mark.parametrize("style", ["plain", "prefix", "fold", "live"])
def test_without_the_fork_server_it_prints_what_there_is_and_leaves(style: str) -> None:
    with WriterProcess(styled(0, style)) as writer:
        writer.write(0, b"a line\nand no end")
        writer.link.close()
        out, _err = writer.rest(timeout=1.0 * SLACK)

        prefix = b"" if style == "plain" else b"[0] "
        end = b"" if style == "plain" else b"\n"
        assert out.replace(b"\r\x1b[K", b"").endswith(prefix + b"and no end" + end)
        assert prefix + b"a line\n" in out


@pytest.mark.parametrize("style", ["plain", "fold"])
def test_without_the_fork_server_and_workers_it_leaves_at_once_with_all_printed(style: str) -> None:
    with WriterProcess(styled(0, style)) as writer:
        writer.write(0, b"a line\nand no end")
        writer.let_workers_go()
        began = time.monotonic()
        writer.link.close()
        out, _err = writer.rest()

        assert b"and no end" in out
        assert time.monotonic() - began < SLACK


def test_without_the_fork_server_it_leaves_though_nobody_reads() -> None:
    with WriterProcess(plain(0), stderr=subprocess.DEVNULL) as writer:
        fill(writer.worker[0, "stdout"])
        writer.link.close()

        assert writer.process.wait(1.0 * SLACK) == 0


def test_many_rounds_leave_no_descriptors(tmp_path: Path) -> None:
    sources = [plain(0, file=str(tmp_path / "out.log")), plain(0, "stderr"), styled(1, "fold")]
    with WriterProcess(*sources) as writer:
        counts = []
        for number in range(300):
            if number:
                writer.begin_round()
            writer.write(0, b"x\n")
            if number % 2:
                writer.order(WorkerGone(0), WorkerGone(1))
            writer.end_round((0, 1))
            writer.let_workers_go()
            counts.append(writer.descriptors())
        out, _err = writer.finish()

        assert out == b"x\n" * 300
        assert counts[-1] < counts[0] + 10  # files are closed a moment later
