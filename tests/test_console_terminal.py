"""What a person sees on a terminal: prefixes, bars, pdb, a window that changes its size."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from pathlib import Path

import pytest

from harness import PROGRAMS, eventually, lines_of
from terminal import CTRL_C, Terminal, phalanx

COLOURS = re.compile(r"\x1b\[[\d;]*m")
#: A line that is drawn, and wiped away before something else takes its place.
LIVE = re.compile(r"[^\n]*\r\x1b\[K")
BARS = PROGRAMS / "bars.py"


def script(folder: Path, text: str) -> Path:
    path = folder / "s.py"
    path.write_text(textwrap.dedent(text))
    return path


def kept(screen: str) -> list[str]:
    """The lines that stay, without their colours."""
    text = COLOURS.sub("", LIVE.sub("", screen))
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def run(folder: Path, *words: object, then: str = "ended", keys: str = "") -> str:
    """The screen after a command, whose exit code is the last thing on it."""
    with Terminal(folder) as terminal:
        terminal.line(f"{phalanx(*words)}; echo {then} $?")
        if keys:
            terminal.press(keys)
        terminal.expect(f"{then} ")
        terminal.expect("\n")
        terminal.nothing_left(terminal.shell.pid)
        return terminal.screen


def test_lines_of_several_workers_have_their_rank(tmp_path: Path) -> None:
    program = script(tmp_path, "import os, sys; print('out'); print('err', file=sys.stderr)")
    screen = run(tmp_path, "--nproc-per-node=3", program)

    wanted = [f"[{rank}] {text}" for rank in range(3) for text in ("err", "out")]
    assert sorted(kept(screen)[:-1]) == sorted(wanted)
    assert "\x1b[36m[0]\x1b[0m out" in screen


def test_no_color(tmp_path: Path) -> None:
    program = script(tmp_path, "print('out')")
    with Terminal(tmp_path) as terminal:
        terminal.line(f"NO_COLOR=1 {phalanx('--nproc-per-node=2', program)}; echo ended")
        terminal.expect("ended\n")

        lines = LIVE.sub("", terminal.screen).splitlines()
        assert sorted(lines) == ["[0] out", "[1] out", "ended"]


def test_workers_have_a_terminal_beside_the_prefix(tmp_path: Path) -> None:
    text = "import os; print(os.isatty(1), os.isatty(2), *os.get_terminal_size(2))"
    with Terminal(tmp_path) as terminal:
        terminal.resize(100, 30)
        terminal.line(f"{phalanx('--nproc-per-node=2', script(tmp_path, text))}; echo ended")
        terminal.expect("ended\n")

        assert "[1] True True 96 30" in kept(terminal.screen)


def test_one_worker_has_the_terminal_itself(tmp_path: Path) -> None:
    program = script(tmp_path, "import os; print(os.ttyname(0) == os.ttyname(1) == os.ttyname(2))")

    assert kept(run(tmp_path, program)) == ["True", "ended 0"]


def test_bars_leave_their_last_state_and_the_lowest_rank_has_the_live_line(tmp_path: Path) -> None:
    screen = run(tmp_path, "--nproc-per-node=3", BARS, "carriage")

    assert sorted(kept(screen)[:-1]) == [f"[{rank}] 100%|{'#' * 20}| r{rank}" for rank in range(3)]
    drawn = re.findall(r"\[0\] +(\d+)%", COLOURS.sub("", screen))
    assert len(set(drawn)) >= 4, "the bar of rank 0 was seen to grow"


def test_bars_of_several_lines_leave_their_last_state(tmp_path: Path) -> None:
    """As rich draws them: up, and over what was there. What is printed meanwhile stays above."""
    screen = run(tmp_path, "--nproc-per-node=2", BARS, "up")

    for rank in (0, 1):
        own = [line for line in kept(screen) if line.startswith(f"[{rank}]")]
        assert own[-3:] == [
            f"[{rank}] halfway", f"[{rank}] train 100% r{rank}", f"[{rank}] eval 100% r{rank}",
        ]  # fmt: skip
        assert len(own) <= 4, "one state from before it was known how it draws"


def test_a_real_bar_of_tqdm(tmp_path: Path) -> None:
    text = """
        import os
        from tqdm import tqdm
        for _ in tqdm(range(10), desc=f"r{os.environ['RANK']}", ncols=60): pass
    """
    screen = run(tmp_path, "--nproc-per-node=2", script(tmp_path, text))

    lines = kept(screen)[:-1]
    assert sorted(line[:12] for line in lines) == ["[0] r0: 100%", "[1] r1: 100%"]


def test_a_real_bar_of_rich(tmp_path: Path) -> None:
    text = """
        import os, time
        from rich.progress import Progress
        with Progress() as progress:
            tasks = [progress.add_task(name, total=10) for name in ("train", "eval")]
            for task in tasks:
                for _ in range(10):
                    progress.advance(task)
                    time.sleep(0.02)
                progress.console.print("finished", task)
    """
    screen = run(tmp_path, "--nproc-per-node=2", script(tmp_path, text))

    for rank in (0, 1):
        own = [line for line in kept(screen) if line.startswith(f"[{rank}]")]
        assert [line.split()[1] for line in own[-4:]] == ["finished", "finished", "train", "eval"]
        assert all("100%" in line for line in own[-2:])


def test_pdb_in_the_only_worker(tmp_path: Path) -> None:
    program = script(tmp_path, "x = 41\nbreakpoint()\nprint('x is', x)\n")
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx(program)}; echo ended $?")
        terminal.expect("(Pdb) ")
        terminal.line("x += 1")
        terminal.expect("(Pdb) ")
        terminal.line("c")
        terminal.expect("x is 42\n")
        terminal.expect("ended 0\n")


PDB = """
    import os, time
    if os.environ["RANK"] == "1":
        x = 41
        breakpoint()
        print("x is", x)
    else:
        print("not shown")
"""


def test_pdb_in_one_of_several_workers(tmp_path: Path) -> None:
    """Its prompt is the live line; keys go to the worker that reads them."""
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx('--nproc-per-node=2', script(tmp_path, PDB))}; echo ended $?")
        terminal.expect("(Pdb) ")
        terminal.line("x += 1")
        terminal.expect("(Pdb) ")
        terminal.line("c")
        terminal.expect("x is 42\n")
        terminal.expect("ended 0\n")


def test_pdb_with_the_terminal_to_itself(tmp_path: Path) -> None:
    program = script(tmp_path, PDB)
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx('--nproc-per-node=3', '--tty=1', program)}; echo ended $?")
        terminal.expect("(Pdb) ")
        terminal.line("x += 1")
        terminal.expect("(Pdb) ")
        terminal.line("c")
        terminal.expect("x is 42")
        terminal.expect("ended 0\n")

        assert "not shown" not in terminal.screen
        assert "[1]" not in terminal.screen
        before = terminal.ask("$(stty -a | tr -d '\\n' | grep -o 'icanon.*')")
        assert "-icanon" not in before, "the terminal is as it was"


def test_keys_and_ctrl_c_go_to_the_worker_with_the_terminal(tmp_path: Path) -> None:
    """Only there: phalanx is not told, and the other workers are not stopped."""
    text = f"""
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("name?", flush=True)
            name = sys.stdin.readline().strip()
            print("hello", name, os.getpgrp() == os.tcgetpgrp(0), flush=True)
            try:
                while True: time.sleep(1)
            except KeyboardInterrupt:
                print("interrupted")
        else:
            while not os.path.exists("{tmp_path}/go"): time.sleep(0.02)
            open("{tmp_path}/other", "w").write("went on\\n")
    """
    with Terminal(tmp_path) as terminal:
        words = ("--nproc-per-node=2", "--tty=1", script(tmp_path, text))
        terminal.line(f"{phalanx(*words)}; echo ended $?")
        terminal.expect("name?")
        terminal.line("ann")
        terminal.expect("hello ann True")
        terminal.press(CTRL_C)
        terminal.expect("interrupted")
        (tmp_path / "go").touch()
        terminal.expect("ended 0\n")

    assert list(lines_of(tmp_path / "other")) == ["went on"]


@pytest.mark.parametrize("option", [[], ["--tty=1"]], ids=["prefix", "tty"])
def test_a_window_that_changes_its_size(tmp_path: Path, option: list[str]) -> None:
    """Whoever asks is told; a worker with a terminal of its own is told by SIGWINCH, too."""
    text = f"""
        import os, signal, time
        signal.signal(signal.SIGWINCH, lambda *_: open("{tmp_path}/told", "a").write("x"))
        if os.environ["RANK"] == "1":
            print("up", *os.get_terminal_size(1), flush=True)
            while os.get_terminal_size(1).lines != 40: time.sleep(0.02)
            print("now", *os.get_terminal_size(1), flush=True)
    """
    with Terminal(tmp_path) as terminal:
        terminal.resize(80, 24)
        words = ("--nproc-per-node=2", *option, script(tmp_path, text))
        terminal.line(f"{phalanx(*words)}; echo ended $?")
        own = 80 if option else 76
        terminal.expect(f"up {own} 24")
        terminal.resize(120, 40)
        terminal.expect(f"now {own + 40} 40")
        terminal.expect("ended 0\n")

    if option:
        eventually((tmp_path / "told").exists, what="a signal")


def test_the_terminal_is_as_it_was_though_the_writer_is_killed(tmp_path: Path) -> None:
    """Its end hangs up the worker, which may be seen first; either way the job is over."""
    program = script(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1000)")
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx('--nproc-per-node=2', '--tty=0', program)}; echo ended $?")
        terminal.expect("up")
        writer = next(pid for pid, line in terminal.processes().items() if line == "phalanx writer")
        os.kill(writer, signal.SIGKILL)
        terminal.expect("phalanx: error: ")
        terminal.expect("ended ")

        assert terminal.expect("\n") in ("70", str(128 + signal.SIGHUP))
        assert "-icanon" not in terminal.ask("$(stty -a | tr -d '\\n' | grep -o 'icanon.*')")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--tty=0 --nproc-per-node=2 {} < /dev/null", "--tty needs a terminal as stdin and stdout"),
        ("--tty=0 --nproc-per-node=2 {} | cat", "--tty needs a terminal as stdin and stdout"),
        ("--tty=2 --nproc-per-node=2 {}", "--tty is '2', but must be a rank from 0 to 1"),
        ("--tty=0 {} & wait $!", "--tty cannot have the terminal in the background"),
    ],
)
def test_where_a_terminal_cannot_be_given_away(tmp_path: Path, words: str, line: str) -> None:
    program = script(tmp_path, "print('ran')")
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx()} {words.format(program)}; echo ended")
        terminal.expect(f"phalanx: error: {line}\nphalanx: hint: ")
        terminal.expect("ended\n")

        assert "ran\n" not in terminal.screen


def test_the_report_is_last_and_on_one_screen(tmp_path: Path) -> None:
    text = """
        import os, time
        print("up")
        def deeper(n):
            if n: deeper(n - 1)
            raise ValueError("bad batch")
        if os.environ["RANK"] == "2": deeper(100)
        time.sleep(1000)
    """
    with Terminal(tmp_path) as terminal:
        terminal.resize(80, 24)
        words = ("--nproc-per-node=4", script(tmp_path, text))
        terminal.line(f"{phalanx(*words)}; echo ended $?")
        terminal.expect("phalanx: error: rank 2 failed: ValueError: bad batch\n")
        report = terminal.expect("ended 1\n").splitlines()

    assert report[0] == "Root Cause (first observed failure):"
    assert "  ValueError: bad batch" in report
    assert "stopped because of it: ranks 0, 1, 3" in report
    assert len(report) <= 22


def test_only_the_rank_with_the_terminal_has_the_keyboard(tmp_path: Path) -> None:
    text = f"""
        import os, sys
        if os.environ["RANK"] == "0":
            open("{tmp_path}/other", "w").write(repr(sys.stdin.read()) + "\\n")
        else:
            print("name?", flush=True)
            print("hello", sys.stdin.readline().strip())
    """
    with Terminal(tmp_path) as terminal:
        words = ("--nproc-per-node=2", "--tty=1", script(tmp_path, text))
        terminal.line(f"{phalanx(*words)}; echo ended $?")
        terminal.expect("name?")
        eventually((tmp_path / "other").exists, what="the end of the other's stdin")
        terminal.line("ann")
        terminal.expect("hello ann")
        terminal.expect("ended 0\n")

    assert list(lines_of(tmp_path / "other")) == ["''"]


def test_with_tty_ctrl_c_is_for_phalanx_once_the_job_is_being_stopped(tmp_path: Path) -> None:
    text = f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("up", flush=True)
        if os.environ["RANK"] == "0":
            while not os.path.exists("{tmp_path}/go"): time.sleep(0.02)
            raise SystemExit(3)
        time.sleep(1000)
    """
    with Terminal(tmp_path) as terminal:
        words = ("--nproc-per-node=2", "--tty=1", script(tmp_path, text))
        terminal.line(f"{phalanx(*words)}; echo ended $?")
        terminal.expect("up")
        (tmp_path / "go").touch()
        terminal.expect("the others are being stopped\n")
        terminal.press(CTRL_C)
        threading.Event().wait(0.5)  # what is pressed closer together counts as one
        terminal.press(CTRL_C)
        terminal.expect("phalanx: error: rank 0 exited with code 3\n")
        terminal.expect("ended 3\n")


def test_a_dumb_terminal_gets_lines_and_nothing_else(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.line(f"TERM=dumb {phalanx('--nproc-per-node=2', BARS, 'carriage')}; echo ended")
        terminal.expect("ended\n")

        lines = [line for line in terminal.screen.splitlines() if line.startswith("[")]
        assert sorted(COLOURS.sub("", line) for line in lines) == [
            f"[{rank}] 100%|{'#' * 20}| r{rank}" for rank in range(2)
        ]
        assert "\r" not in terminal.screen
        assert "\x1b[K" not in terminal.screen


def test_a_worker_that_dies_in_raw_mode_leaves_no_raw_terminal(tmp_path: Path) -> None:
    text = """
        import os, signal, tty
        tty.setraw(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with Terminal(tmp_path) as terminal:
        terminal.line(f"{phalanx(script(tmp_path, text))}; echo ended $?")
        terminal.expect("phalanx: error: rank 0 was killed by SIGKILL")
        terminal.expect("ended 137\n")

        assert "-icanon" not in terminal.ask("$(stty -a | tr -d '\\n' | grep -o 'icanon.*')")
