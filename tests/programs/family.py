"""A worker with helpers of every kind, which waits until it is stopped.

    LAUNCHER family.py --dir DIR [--kinds KIND,...] [--exit CODE]

Each kind is one helper, a fork of the worker that then waits for a signal:
- child: a plain child
- grandchild: a child of a child
- daemon: a grandchild whose parent has exited
- session: a child in a session of its own
- detached: a daemon in a session of its own, as daemons detach themselves
- stubborn: a child that ignores SIGTERM, SIGINT, SIGHUP and SIGQUIT

With `stubborn` among the kinds the worker itself ignores them too. A helper that gets SIGTERM
appends "KIND SIGTERM SECONDS" (CLOCK_MONOTONIC) to DIR/signals_R.log, R being the rank, and dies of
it. The file DIR/ready_R holds the pids by kind, "worker" included, as JSON; it appears when all are
waiting. With --exit the worker exits with CODE then. Standard library only.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import time
from types import FrameType

KINDS = ("child", "grandchild", "daemon", "session", "detached", "stubborn")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def log_and_die(path: str, kind: str, signum: int, frame: FrameType | None) -> None:
    line = f"{kind} {signal.Signals(signum).name} {time.monotonic()}\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode())
    os.close(fd)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def ignore_stops() -> None:
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def wait_for_ever() -> None:
    while True:
        signal.pause()


def helper(kind: str, log: str, report: int) -> None:
    """The program of one helper: report the pid when all is set up, and wait."""
    if kind in ("session", "detached"):
        os.setsid()
    if kind in ("grandchild", "daemon", "detached") and os.fork():
        if kind == "grandchild":
            wait_for_ever()
        os._exit(0)
    if kind == "stubborn":
        ignore_stops()
    else:
        signal.signal(signal.SIGTERM, functools.partial(log_and_die, log, kind))
    os.write(report, f"{os.getpid()}\n".encode())
    wait_for_ever()


def start(kind: str, log: str) -> int:
    """Start one; its pid, once it waits."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        helper(kind, log, theirs)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        return int(pipe.readline())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--exit", type=int)
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    assert set(kinds) <= set(KINDS), kinds
    rank = os.environ["RANK"]
    if "stubborn" in kinds:
        ignore_stops()

    log = os.path.join(arguments.dir, f"signals_{rank}.log")
    pids = {"worker": os.getpid(), **{kind: start(kind, log) for kind in kinds}}
    path = os.path.join(arguments.dir, f"ready_{rank}")
    with open(f"{path}.partial", "w") as file:
        json.dump(pids, file)
    os.replace(f"{path}.partial", path)
    if arguments.exit is not None:
        os._exit(arguments.exit)
    wait_for_ever()


if __name__ == "__main__":
    main()
