"""Rank 0 has a helper that has let go of it (forked twice, a session of its own); rank 1 fails.

    LAUNCHER --nproc-per-node=2 daemon_owner.py --dir DIR

The helper of rank 0 appears as DIR/daemon. On TERM rank 0 writes DIR/saved, which takes it a
moment, and exits 0; the helper writes to DIR/told whether that file was there when it got TERM.
Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType


def be_daemon(folder: Path) -> None:
    def told(signum: int, frame: FrameType | None) -> None:
        text = "saved" if (folder / "saved").exists() else "too early"
        (folder / "told").write_text(text)
        os._exit(0)

    signal.signal(signal.SIGTERM, told)
    (folder / "daemon").write_text(str(os.getpid()))
    while True:
        time.sleep(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    folder: Path = parser.parse_args().dir
    if os.environ["RANK"] == "1":
        while not (folder / "ready").exists():
            time.sleep(0.01)
        sys.exit(3)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            be_daemon(folder)
        os._exit(0)
    os.wait()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.append(signum))
    while not (folder / "daemon").exists():
        time.sleep(0.01)
    (folder / "ready").touch()
    while not stop:
        time.sleep(0.01)
    time.sleep(0.5)  # the save
    (folder / "saved").touch()


main()
