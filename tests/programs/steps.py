"""Makes steps as a training job does, and tells when each was done.

    LAUNCHER --nproc-per-node=N steps.py --dir DIR

A step is some computing, some waiting, an all_reduce with gloo and a query to the workers' store:
60 to 100 ms on an idle machine. After the first ten, rank 0 leaves DIR/port, with the store's port.
When DIR/stop is there all end after the same step, and each leaves DIR/steps_<rank>.json: the
instant of each step, on the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

WARM_UP = 10
COMPUTE_S, WAIT_S = 0.03, 0.03


def compute(matrix: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(matrix, matrix)


def times_for(seconds: float, matrix: torch.Tensor) -> int:
    """How often `matrix` is multiplied in about this time."""
    best_s = float("inf")
    for _ in range(5):
        started_s = time.perf_counter()
        compute(matrix, 10)
        best_s = min(best_s, time.perf_counter() - started_s)
    return max(1, round(10 * seconds / best_s))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    folder = parser.parse_args().dir
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    torch.set_num_threads(1)
    matrix = torch.rand(256, 256)
    times = times_for(COMPUTE_S, matrix)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))

    steps: list[float] = []
    stopping = torch.zeros(1)
    while not stopping.item():
        compute(matrix, times)
        time.sleep(WAIT_S)
        store.add("steps", 1)
        stopping[0] = rank == 0 and (folder / "stop").exists()
        dist.all_reduce(stopping)
        steps.append(time.monotonic())
        if rank == 0 and len(steps) == WARM_UP:
            (folder / "port.partial").write_text(port)
            os.replace(folder / "port.partial", folder / "port")
    (folder / f"steps_{rank}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
