"""A gloo group that loses a rank in its first attempt and must come up whole in the next.

    LAUNCHER --nproc-per-node=N --max-restarts=1 gloo_crash.py --out FILE [--mode MODE] [--rank R]

Every rank joins the group and takes part in an all_reduce. Then, while TORCHELASTIC_RESTART_COUNT
is 0, rank R (default 1) dies: by an uncaught exception, by os._exit(3), or by SIGKILL; the others
are then inside a second all_reduce, so that they see the loss as a broken connection. In a later
attempt all finish, and rank 0 writes "OK <restart count> <world size>" to FILE.

torch 2.13's torchrun serves one store to all attempts: in most restarts, gloo finds the addresses
of dead ranks there and init_process_group fails, which uses up the restarts.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
import torch.distributed as dist

EXIT_CODE = 3


def die(mode: str) -> None:
    if mode == "exception":
        raise RuntimeError("gloo_crash: this rank was told to fail")
    if mode == "exit":
        os._exit(EXIT_CODE)
    os.kill(os.getpid(), signal.SIGKILL)


def checked_sum() -> None:
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    expected = sum(range(1, dist.get_world_size() + 1))
    if value.item() != expected:
        raise RuntimeError(f"gloo_crash: all_reduce gave {value.item()}, not {expected}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode", choices=("exception", "exit", "kill"), default="exit")
    parser.add_argument("--rank", type=int, default=1)
    arguments = parser.parse_args()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    dist.init_process_group("gloo")
    checked_sum()
    if attempt == 0 and dist.get_rank() == arguments.rank:
        die(arguments.mode)
    checked_sum()
    if dist.get_rank() == 0:
        with open(f"{arguments.out}.partial", "w") as file:
            file.write(f"OK {attempt} {dist.get_world_size()}\n")
        os.replace(f"{arguments.out}.partial", arguments.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
