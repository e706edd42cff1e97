"""Every signal to phalanx, by what the workers make of it, by whether they have helpers.

Each case asserts the exit code, what is printed last, what the workers got, and that nothing is
left. The whole matrix, with workers that take 5 s to save, is long; a sample of it, with times
scaled down, is not.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from harness import PROGRAMS, SLACK, Run, eventually, lines_of
from phalanx.record import Record
from phalanx.signals import SIGNALS

ANSWERS = PROGRAMS / "answers.py"
STOPPED = 120
WORKERS = 2
#: "At once", on a loaded machine; the default timeouts are 27 s and more.
AT_ONCE_S = 3 * SLACK


class Sent(Record):
    """What phalanx is sent, and what is meant by it."""

    signum: signal.Signals
    twice: bool = False
    #: SIGHUP was ignored when phalanx was started.
    nohup: bool = False

    @property
    def stops(self) -> bool:
        return self.signum not in (signal.SIGUSR1, signal.SIGUSR2) and not self.nohup


SENT = {
    "INT": Sent(signal.SIGINT),
    "INT twice": Sent(signal.SIGINT, twice=True),
    "TERM": Sent(signal.SIGTERM),
    "HUP": Sent(signal.SIGHUP),
    "HUP under nohup": Sent(signal.SIGHUP, nohup=True),
    "QUIT": Sent(signal.SIGQUIT),
    "USR1": Sent(signal.SIGUSR1),
    "USR2": Sent(signal.SIGUSR2),
}


class Times(Record):
    """In seconds; `timeout_s` is --shutdown-timeout, and longer than a slow worker needs."""

    slow_s: float
    timeout_s: int


SHORT = Times(slow_s=0.5, timeout_s=1)
FULL = Times(slow_s=5.0, timeout_s=8)

#: Each signal, answer and kind of worker at least once.
SAMPLE = (
    ("INT", "slow", True),
    ("INT twice", "ignore", True),
    ("TERM", "obey", False),
    ("TERM", "ignore", True),
    ("HUP", "obey", True),
    ("HUP under nohup", "obey", False),
    ("QUIT", "slow", False),
    ("USR1", "ignore", False),
    ("USR2", "obey", True),
)


@pytest.mark.parametrize(("name", "answer", "helper"), SAMPLE)
def test_a_signal(tmp_path: Path, name: str, answer: str, helper: bool) -> None:
    Case(tmp_path, SENT[name], answer, helper, SHORT).play()


@pytest.mark.long
@pytest.mark.parametrize("helper", [False, True], ids=["alone", "with a helper"])
@pytest.mark.parametrize("answer", ["obey", "ignore", "slow"])
@pytest.mark.parametrize("name", SENT)
def test_a_signal_whatever_the_workers_do(
    tmp_path: Path, name: str, answer: str, helper: bool
) -> None:
    Case(tmp_path, SENT[name], answer, helper, FULL).play()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_not_to_be_handled_ends_phalanx_and_the_workers(
    tmp_path: Path, signum: signal.Signals
) -> None:
    """As it would any program, and without a word."""
    words = ("--signals-to-handle=SIGTERM", ANSWERS, "--dir", tmp_path, "--answer", "ignore")
    with Run(*words) as run:
        eventually((tmp_path / "ready_0").exists, what="the worker is ready")
        run.signal(signum)

        assert run.wait(AT_ONCE_S) == -signum
        run.nothing_left(AT_ONCE_S)
        assert run.stderr == ""


def test_the_table_of_signals_names_all_that_are_sent_here() -> None:
    named = " ".join(row.signal for row in SIGNALS)

    assert all(sent.signum.name in named for sent in SENT.values())


class Case:
    """One run: `play` starts it, sends the signal, and checks how all ends."""

    def __init__(self, folder: Path, sent: Sent, answer: str, helper: bool, times: Times) -> None:
        self.folder = folder
        self.sent = sent
        self.answer = answer
        self.times = times
        # Whoever presses Ctrl-C twice does not wait for the timeout.
        timeout_s = 600 if sent.twice else times.timeout_s
        options = (f"--nproc-per-node={WORKERS}", f"--shutdown-timeout={timeout_s}")
        behaviour = ("--answer", answer, "--seconds", str(times.slow_s))
        self.words = (*options, ANSWERS, "--dir", folder, *behaviour, *["--helper"] * helper)

    def play(self) -> None:
        ignore_hup = _ignore_hup if self.sent.nohup else None
        with Run(*self.words, preexec_fn=ignore_hup) as run:
            ready = [self.folder / f"ready_{rank}" for rank in range(WORKERS)]
            eventually(lambda: all(path.exists() for path in ready), what="all workers ready")
            run.signal(self.sent.signum)
            if self.sent.stops:
                self.ends_on_request(run)
            else:
                self.goes_on(run)
            run.nothing_left(AT_ONCE_S)

    def ends_on_request(self, run: Run) -> None:
        name = self.sent.signum.name
        if self.answer != "ignore":
            eventually(lambda: all(log[:1] == [name] for log in self.logs()), what="all are told")
        if self.sent.twice:
            # Two within 0.2 s are one, and how fast we are is not known: press until it is heard.
            eventually(lambda: run.process.poll() is not None or run.signal(signal.SIGINT))

        assert run.wait(self.times.timeout_s + AT_ONCE_S) == STOPPED
        assert run.stderr.splitlines()[-1] == f"phalanx: stopped on request ({name})"
        assert run.stdout == ""
        outlasted = self.answer == "ignore" and not self.sent.twice
        assert ("killed at the end of the shutdown timeout" in run.stderr) == outlasted
        if self.answer == "slow" and not self.sent.twice:
            assert self.logs() == [[name, "saved"]] * WORKERS

    def goes_on(self, run: Run) -> None:
        """Until the workers are done by themselves; not a word of it."""
        heard = [] if self.sent.nohup or self.answer == "ignore" else [self.sent.signum.name]
        eventually(lambda: self.logs() == [heard] * WORKERS, what="all are told")
        eventually(lambda: not _pending(run.pid), what="phalanx has taken it in")

        (self.folder / "go").touch()

        assert run.wait(self.times.timeout_s + AT_ONCE_S) == 0
        assert (run.stdout, self.last_words(run)) == ("", [])
        assert self.logs() == [heard] * WORKERS

    def last_words(self, run: Run) -> list[str]:
        """What is said, but for helpers that ignore everything and outlive their worker."""
        return [line for line in run.stderr.splitlines() if "helper process" not in line]

    def logs(self) -> list[list[str]]:
        return [list(lines_of(self.folder / f"signals_{rank}.log")) for rank in range(WORKERS)]


def _pending(pid: int) -> bool:
    """Is there a signal that the process has been sent and has not got yet?"""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd")))


def _ignore_hup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
