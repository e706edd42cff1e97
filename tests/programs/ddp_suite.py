"""What programs do with torch.distributed over gloo on CPUs, all in one run.

    LAUNCHER --nproc-per-node=N ddp_suite.py --dir DIR     (DIR: where checkpoints may be written)

Rank 0 prints a JSON line per feature as it is done: {"feature": NAME, "result": VALUE}. The values
depend on the number of workers only, so the output of two launchers can be compared as text. A
feature that fails ends the program with a traceback.

FSDP with torch 2.13 on CPUs over gloo:
- FullyShardedDataParallel (FSDP1) works if given device_id=torch.device("cpu"). Without it, with or
  without a device mesh: RuntimeError "FSDP needs a non-CPU accelerator device, but no accelerator
  device is detected".
- fully_shard (FSDP2) works, with a CPU device mesh and without one.
- Both give the losses of DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


def build_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module) -> list[float]:
    """A few steps on data that differs by rank; the mean losses, rounded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(round(mean.item() / dist.get_world_size(), 5))
    return losses


def all_reduce() -> float:
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    return value.item()


def new_group() -> float:
    """The sum over the even ranks, known to all."""
    members = list(range(0, dist.get_world_size(), 2))
    group = dist.new_group(members)
    value = torch.tensor([dist.get_rank() + 1.0])
    if dist.get_rank() in members:
        dist.all_reduce(value, group=group)
    dist.broadcast(value, src=0)
    return value.item()


def barrier() -> str:
    dist.barrier()
    return "passed"


def monitored_barrier() -> str:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    return "passed"


def all_gather_object() -> list[dict[str, Any]]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "squares": [1, 4, 9]})
    return gathered


def data_parallel() -> list[float]:
    return train(DistributedDataParallel(build_network()))


def fsdp1() -> list[float]:
    model = FullyShardedDataParallel(build_network(), device_id=torch.device("cpu"))
    return train(model)


def shard(network: nn.Sequential) -> nn.Sequential:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh)
    return network


def fsdp2() -> list[float]:
    return train(shard(build_network()))


def checkpoint(directory: str) -> str:
    """Save the shards of a trained model, load them into another, compare whole tensors."""
    trained = shard(build_network())
    train(trained)
    path = os.path.join(directory, "checkpoint")
    dcp.save({"model": trained.state_dict()}, checkpoint_id=path)
    loaded = shard(build_network(seed=1))
    state = {"model": loaded.state_dict()}
    dcp.load(state, checkpoint_id=path)
    loaded.load_state_dict(state["model"])
    for name, tensor in trained.state_dict().items():
        if not torch.equal(tensor.full_tensor(), loaded.state_dict()[name].full_tensor()):
            raise RuntimeError(f"ddp_suite: {name} is not what was saved")
    return "equal"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    arguments = parser.parse_args()

    features: dict[str, Callable[[], Any]] = {
        "all_reduce": all_reduce,
        "new_group": new_group,
        "barrier": barrier,
        "monitored_barrier": monitored_barrier,
        "all_gather_object": all_gather_object,
        "data_parallel": data_parallel,
        "fsdp1": fsdp1,
        "fsdp2": fsdp2,
        "checkpoint": lambda: checkpoint(arguments.dir),
    }
    dist.init_process_group("gloo")
    for name, feature in features.items():
        result = feature()
        if dist.get_rank() == 0:
            print(json.dumps({"feature": name, "result": result}), flush=True)
    gc.collect()  # models refer to the group from cycles; it must be gone before Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
