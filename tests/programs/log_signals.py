"""A worker that writes down each signal it gets, and exits with CODE at the first that stops a job.

    LAUNCHER log_signals.py --dir DIR [--go] [--code CODE]

DIR/ready_R holds the pid as JSON, R being the rank, and appears when the handlers are set; a later
round makes it anew. Each signal is a line "ROUND NAME" in DIR/signals_R.log. With --go it exits
only when DIR/go is there. A signal that was ignored at the start stays ignored. Standard library
only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
OTHERS = (signal.SIGUSR1, signal.SIGUSR2)

log = -1
stopping = False


def on_signal(signum: int, frame: FrameType | None) -> None:
    global stopping
    os.write(log, f"{os.environ['PHALANX_ROUND']} {signal.Signals(signum).name}\n".encode())
    stopping = stopping or signum in STOPS


def main() -> None:
    global log
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--go", action="store_true")
    parser.add_argument("--code", type=int, default=0)
    arguments = parser.parse_args()
    rank = os.environ["RANK"]

    log = os.open(
        os.path.join(arguments.dir, f"signals_{rank}.log"),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT,
        0o644,
    )
    for signum in (*STOPS, *OTHERS):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, on_signal)
    path = os.path.join(arguments.dir, f"ready_{rank}")
    with open(f"{path}.partial", "w") as file:
        json.dump({"pid": os.getpid(), "round": int(os.environ["PHALANX_ROUND"])}, file)
    os.replace(f"{path}.partial", path)
    while not stopping:
        time.sleep(0.01)  # not pause(): a signal just before it would be waited for twice
    while arguments.go and not os.path.exists(os.path.join(arguments.dir, "go")):
        time.sleep(0.01)
    sys.exit(arguments.code)


if __name__ == "__main__":
    main()
