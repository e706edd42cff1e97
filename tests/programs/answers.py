"""A worker that answers signals in one of three ways, with or without a helper.

    LAUNCHER answers.py --dir DIR --answer obey|ignore|slow [--seconds S] [--helper]

It answers SIGINT, SIGTERM, SIGHUP and SIGQUIT: `obey` exits at once, `slow` after S seconds, in
which it would be saving, `ignore` never. Each signal that it has not ignored is a line with its
name in DIR/signals_R.log, R being the rank, SIGUSR1 and SIGUSR2 too; `slow` adds a line "saved".
The file DIR/ready_R appears when all is set up. When DIR/go is there, it exits with 0. A signal
that was ignored at the start stays ignored. The helper is a child that dies of the first signal, or
ignores them all like the worker. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OTHERS = (signal.SIGUSR1, signal.SIGUSR2)

log = -1
stopping = False


def write(line: str) -> None:
    os.write(log, f"{line}\n".encode())


def on_signal(signum: int, frame: FrameType | None) -> None:
    global stopping
    write(signal.Signals(signum).name)
    stopping = stopping or signum in STOPS


def set_handlers(ignore: bool) -> None:
    for signum in (*STOPS, *OTHERS):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_IGN if ignore else on_signal)


def helper() -> None:
    """Until it dies of a signal; Python would make an exception of SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        signal.pause()


def main() -> None:
    global log
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--answer", choices=("obey", "ignore", "slow"), required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--helper", action="store_true")
    arguments = parser.parse_args()
    rank = os.environ["RANK"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a helper dies of SIGQUIT
    log = os.open(
        os.path.join(arguments.dir, f"signals_{rank}.log"),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT,
        0o644,
    )

    if arguments.answer == "ignore":
        set_handlers(ignore=True)
    if arguments.helper and os.fork() == 0:
        helper()
    if arguments.answer != "ignore":
        set_handlers(ignore=False)
    open(os.path.join(arguments.dir, f"ready_{rank}"), "w").close()
    while not stopping and not os.path.exists(os.path.join(arguments.dir, "go")):
        time.sleep(0.01)  # not pause(): a signal just before it would be waited for twice
    if stopping and arguments.answer == "slow":
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            time.sleep(0.01)
        write("saved")
    sys.exit(0)


if __name__ == "__main__":
    main()
