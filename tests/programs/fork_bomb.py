"""A worker that starts N chains of processes: each forks the next of its chain and exits, for ever.

    LAUNCHER fork_bomb.py --dir DIR [--count N] [--pause S]

There are N of them (default 500) at any time, each with a new pid every S seconds (default 0.5),
and all of them orphans. DIR/ready_R, R being the rank, appears when all chains have begun. Bounded:
each chain ends by itself after a minute. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

LIMIT_S = 60.0


def chain(report: int, pause_s: float) -> None:
    ends_at = time.monotonic() + LIMIT_S
    os.write(report, b".")
    os.close(report)
    while time.monotonic() < ends_at:
        if os.fork():
            os._exit(0)
        time.sleep(pause_s)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.5)
    arguments = parser.parse_args()

    ours, theirs = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(arguments.count):
        if os.fork() == 0:
            os.close(ours)
            chain(theirs, arguments.pause)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        pipe.read()
    with open(os.path.join(arguments.dir, f"ready_{os.environ['RANK']}"), "w"):
        pass
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
