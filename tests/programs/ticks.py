"""A worker and helpers that write down, every few milliseconds, that they run.

    LAUNCHER ticks.py --dir DIR [--kinds KIND,...] [--save-seconds S] [--code CODE]

Each process appends the time (CLOCK_MONOTONIC, one line each) to DIR/ticks_R_KIND, R being the
rank. The worker's kind is `worker`; each of these is one helper:
- child: a plain child, in the worker's group
- session: a child in a session of its own
- detached: one that detaches itself as daemons do; its parent has exited
- chain: processes of which each writes ten times, forks the next and exits

All end when DIR/go_C is there, C being the restart count; the worker exits with CODE then. At
SIGTERM, SIGINT, SIGHUP or SIGQUIT the worker appends "C NAME" to DIR/signals_R, goes on for S
seconds (default 0), makes DIR/saved_R and exits 0. DIR/ready_R_C holds its pid and appears when all
of them run. Nothing is printed. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType

PAUSE_S = 0.005
#: Of a run whose test has failed: no process ticks for longer.
LIMIT_S = 100.0


class Place:
    """Where this process writes, and when it ends."""

    def __init__(self, folder: str, rank: str, restart_count: str) -> None:
        self.folder = folder
        self.rank = rank
        self.restart_count = restart_count
        self.end_at = time.monotonic() + LIMIT_S

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def append(self, name: str, line: str) -> None:
        fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def tick(self, kind: str) -> bool:
        """Write the time, and pause. False: it is time to end."""
        self.append(f"ticks_{self.rank}_{kind}", repr(time.monotonic()))
        time.sleep(PAUSE_S)
        if time.monotonic() > self.end_at:
            return False
        return not os.path.exists(self.path(f"go_{self.restart_count}"))


def helper(place: Place, kind: str) -> None:
    """The program of one helper. Never returns."""
    if kind in ("session", "detached"):
        os.setsid()
    if kind == "detached" and os.fork():
        os._exit(0)
    count = 0
    while place.tick(kind):
        count += 1
        if kind == "chain" and count % 10 == 0 and os.fork():
            os._exit(0)
    os._exit(0)


def work(place: Place, save_s: float) -> None:
    """Tick until it is time to go, or to save. Never raises."""
    stop: list[str] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.append(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, on_signal)
    with open(place.path("partial_" + place.rank), "w") as file:
        file.write(str(os.getpid()))
    ready = place.path(f"ready_{place.rank}_{place.restart_count}")
    os.replace(file.name, ready)
    while not stop:
        if not place.tick("worker"):
            return
    for name in stop:
        place.append(f"signals_{place.rank}", f"{place.restart_count} {name}")
    save_until = time.monotonic() + save_s
    while time.monotonic() < save_until:
        place.append(f"ticks_{place.rank}_worker", repr(time.monotonic()))
        time.sleep(PAUSE_S)
    place.append(f"saved_{place.rank}", "saved")
    sys.exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--save-seconds", type=float, default=0.0)
    parser.add_argument("--code", type=int, default=0)
    arguments = parser.parse_args()
    place = Place(arguments.dir, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])

    kinds = [kind for kind in arguments.kinds.split(",") if kind]
    for kind in kinds:
        if os.fork() == 0:
            helper(place, kind)
    while not all(os.path.exists(place.path(f"ticks_{place.rank}_{kind}")) for kind in kinds):
        time.sleep(PAUSE_S)
    work(place, arguments.save_seconds)
    sys.exit(arguments.code)


if __name__ == "__main__":
    main()
