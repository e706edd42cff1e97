"""A worker that, told to stop, needs its data-loader workers alive to save what it has.

    LAUNCHER save_on_term.py --dir DIR [--save-seconds S]

Files in DIR, R being the rank:
- ready_R: JSON with the pid and the pids of both loader workers; appears when all of them are up
- loader_R.log: a JSON line for each SIGTERM a loader worker sees: its pid and time.monotonic(). The
  worker then dies of that signal, as one without a handler would
- saved_R: appears when the save is complete, S seconds (default 2) after SIGTERM came

While it saves, it draws more batches than the loader holds in advance. If a loader worker has
died, torch raises, there is no saved_R and the exit status is 1; otherwise it is 0.

torch 2.13's torchrun sends SIGTERM to the worker's whole process group: the save fails.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

LOADER_WORKERS = 2
PIECES = 10
BATCHES_PER_PIECE = 5  # 50 in all; the loader holds at most 4 in advance

stop_requested = False


def request_stop(signum: int, frame: FrameType | None) -> None:
    global stop_requested
    stop_requested = True


class Counter(IterableDataset[Tensor]):
    """Numbers without end."""

    def __iter__(self) -> Iterator[Tensor]:
        number = 0
        while True:
            yield torch.tensor(number)
            number += 1


def log_and_die(path: str, signum: int, frame: FrameType | None) -> None:
    """Append one line, then die of the signal."""
    line = json.dumps({"pid": os.getpid(), "monotonic_s": time.monotonic()})
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def start_loader_worker(log_path: str, worker_id: int) -> None:
    signal.signal(signal.SIGTERM, functools.partial(log_and_die, log_path))


def write_whole(path: str, text: str) -> None:
    with open(f"{path}.partial", "w") as file:
        file.write(text)
    os.replace(f"{path}.partial", path)


def save(path: str, batches: Iterator[Tensor], save_s: float) -> None:
    """Write the file in pieces, spread over `save_s` seconds."""
    with open(f"{path}.partial", "w") as file:
        for piece in range(PIECES):
            time.sleep(save_s / PIECES)
            drawn = [int(next(batches).sum()) for _ in range(BATCHES_PER_PIECE)]
            file.write(f"piece {piece} {drawn}\n")
            file.flush()
    os.replace(f"{path}.partial", path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--save-seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    rank = os.environ["RANK"]
    signal.signal(signal.SIGTERM, request_stop)

    loader = DataLoader(
        Counter(),
        batch_size=4,
        num_workers=LOADER_WORKERS,
        worker_init_fn=functools.partial(
            start_loader_worker, os.path.join(arguments.dir, f"loader_{rank}.log")
        ),
    )
    batches = iter(loader)
    for _ in range(2 * LOADER_WORKERS):  # each loader worker has answered: their handlers are set
        next(batches)
    pids = [process.pid for process in batches._workers]
    write_whole(
        os.path.join(arguments.dir, f"ready_{rank}"),
        json.dumps({"pid": os.getpid(), "loader_pids": pids}) + "\n",
    )
    while not stop_requested:
        next(batches)
        time.sleep(0.01)
    save(os.path.join(arguments.dir, f"saved_{rank}"), batches, arguments.save_seconds)


if __name__ == "__main__":
    main()
