"""Trains a classifier of handwritten digits, data-parallel over gloo.

    torchrun --nproc_per_node=4 train.py
    phalanx  --nproc-per-node=4 train.py

An ordinary PyTorch program: nothing in it knows which launcher started it. The digits are the 1,797
images of 8x8 pixels that scikit-learn carries with it, so nothing is downloaded; every fifth image
is kept for the test. For one seed and one number of workers the result is the same in every run,
to the last bit.

With --checkpoint, rank 0 saves after every epoch, and a group that finds the file goes on from it:
that is all a program needs so that a restart costs it no more than the epoch it was in. (The loss
then differs in its last digits: DistributedDataParallel orders its sums anew after a first step.)
"""

from __future__ import annotations

import time

STARTED_S = time.monotonic()  # before the slow imports, so that --progress can tell their cost

import argparse  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

TORCH_IMPORTED_S = time.monotonic()

BATCH_SIZE = 32  # of each worker
TEST_EVERY = 5  # every fifth image is a test image


class Progress:
    """Appends one JSON line per event to a file or a FIFO; does nothing without a path.

    A line is one write of less than PIPE_BUF bytes, so the lines of several workers never mix.
    """

    def __init__(self, path: str | None) -> None:
        self._fd = -1
        if path is not None:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __call__(
        self, event: str, *, epoch: int = 0, step: int = 0, at_s: float | None = None
    ) -> None:
        if self._fd < 0:
            return
        line = {
            "event": event,
            "rank": int(os.environ["RANK"]),
            "pid": os.getpid(),
            "restart_count": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "epoch": epoch,
            "step": step,
            "monotonic_s": time.monotonic() if at_s is None else at_s,
        }
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The training and the test images, always split in the same way."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    is_test = torch.arange(len(labels)) % TEST_EVERY == 0
    return (
        TensorDataset(images[~is_test], labels[~is_test]),
        TensorDataset(images[is_test], labels[is_test]),
    )


def build_network() -> nn.Module:
    """Two small convolutions and a linear layer: 10,000 parameters, enough for 97 % and more."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def save_checkpoint(
    path: str, model: nn.Module, optimizer: torch.optim.Optimizer, epochs_done: int, loss: float
) -> None:
    """Replaces the file in one step: whoever is killed here leaves the old one or the new one."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs_done": epochs_done,
        "loss": loss,
    }
    partial = f"{path}.partial"
    torch.save(state, partial)
    os.replace(partial, path)


def load_checkpoint(
    path: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, float]:
    """How many epochs the checkpoint has behind it, and the loss of the last one."""
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epochs_done"], state["loss"]


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    epoch: int,
    step_delay_s: float,
    progress: Progress,
) -> float:
    """One pass over this worker's share; the mean loss over all workers."""
    model.train()
    total = torch.zeros(2, dtype=torch.float64)  # sum of losses, number of images
    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
        progress("step", epoch=epoch, step=step)
        if step_delay_s > 0:
            time.sleep(step_delay_s)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """The fraction of test images that all workers together name rightly."""
    model.eval()
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in test.tensors)
    right = (model(images).argmax(dim=1) == labels).sum()
    total = torch.stack([right, torch.tensor(len(labels))]).to(torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def run(arguments: argparse.Namespace, progress: Progress) -> None:
    """Train and test in a process group that is up."""
    rank = dist.get_rank()
    train, test = load_data()
    progress("data_loaded")

    torch.manual_seed(arguments.seed)
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    epochs_done, loss = 0, float("nan")
    if arguments.checkpoint and os.path.exists(arguments.checkpoint):
        epochs_done, loss = load_checkpoint(arguments.checkpoint, network, optimizer)
        progress("checkpoint_loaded", epoch=epochs_done)
        if rank == 0:
            print(f"going on from the checkpoint of epoch {epochs_done}", flush=True)
    model = DistributedDataParallel(network)
    progress("model_ready", epoch=epochs_done)

    sampler = DistributedSampler(train, seed=arguments.seed)
    loader = DataLoader(train, batch_size=BATCH_SIZE, sampler=sampler)
    for epoch in range(epochs_done + 1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, epoch, arguments.step_delay, progress)
        if rank == 0:
            print(f"epoch {epoch:2d}  loss {loss:.4f}", flush=True)
            if arguments.checkpoint:
                save_checkpoint(arguments.checkpoint, network, optimizer, epoch, loss)
        progress("epoch_done", epoch=epoch)

    share = accuracy(network, test)
    if rank == 0:
        print(f"test accuracy {share:.4f}", flush=True)
        if arguments.final_json:
            with open(arguments.final_json, "w") as file:
                json.dump({"loss": loss, "accuracy": share}, file)
                file.write("\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", metavar="PATH", help="save here, and go on from here")
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="rest after each step"
    )
    parser.add_argument("--progress", metavar="FILE", help="append a JSON line per event")
    parser.add_argument(
        "--final-json", metavar="FILE", help="write the final loss and accuracy in full precision"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    progress = Progress(arguments.progress)
    progress("started", at_s=STARTED_S)
    progress("torch_imported", at_s=TORCH_IMPORTED_S)
    dist.init_process_group("gloo")
    progress("group_ready")
    run(arguments, progress)
    # The model refers to the group from a reference cycle. Were the group still alive when Python
    # ends, one of gloo's threads could ask for the interpreter's lock and abort the process.
    gc.collect()
    dist.destroy_process_group()
    progress("finished", epoch=arguments.epochs)


if __name__ == "__main__":
    main()
