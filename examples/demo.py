"""The demo: four workers learn to read digits, one is killed half-way, the group goes on.

    python examples/demo.py [--launcher 'COMMAND'] [--verbose]

Starts examples/digits/train.py under the launcher and follows it through the JSON lines that its
workers write into a FIFO. When rank 2 is in the middle of the middle epoch, it is killed with
SIGKILL. At the end the demo says what happened and how long the recovery took. It exits with 0 if
the group recovered and the test accuracy is at least 95 %, otherwise with 1.

Standard library only. Nothing is timed by waiting: each step follows an event, within one limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

WORKERS = 4
VICTIM_RANK = 2
KILL_AT_STEP = 6  # of the 12 that an epoch has with four workers
ACCURACY_WANTED = 0.95
STOP_LIMIT_S = 35.0  # launchers give workers up to 30 s to stop
TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits", "train.py")

#: What a starting worker reports, in this order, and what it did up to then. The first entry is
#: the launcher's part: the worker reports it in the first line of its program.
PHASES = (
    ("started", "the launcher: old workers stopped, new ones started"),
    ("torch_imported", "import torch"),
    ("group_ready", "the workers find each other (init_process_group)"),
    ("data_loaded", "import scikit-learn, load the data"),
    ("model_ready", "load the checkpoint, set up DistributedDataParallel"),
    ("step", "the first training step"),
)


@dataclass(frozen=True)
class Event:
    """One line of a worker's progress; `monotonic_s` is the machine's monotonic clock."""

    event: str
    rank: int
    pid: int
    restart_count: int
    epoch: int
    step: int
    monotonic_s: float


@dataclass(frozen=True)
class Kill:
    """The victim as it was in its last moment."""

    pid: int
    epoch: int
    at_s: float


@dataclass
class Story:
    """What has been seen so far. Only events of restarted groups are kept in full."""

    kill: Kill | None = None
    resumed_epoch: int | None = None
    #: For each kind of event, when each rank of the restarted group first reported it.
    first_seen_s: dict[str, dict[int, float]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        if event.restart_count == 0:
            return
        if event.event == "checkpoint_loaded":
            self.resumed_epoch = event.epoch
        self.first_seen_s.setdefault(event.event, {}).setdefault(event.rank, event.monotonic_s)

    def whole_group_s(self, kind: str) -> float | None:
        """When the last rank of the restarted group reported it; None until all have."""
        times = self.first_seen_s.get(kind, {})
        return max(times.values()) if len(times) == WORKERS else None

    def recovered_s(self) -> float | None:
        """From the kill to the first training step of the whole group, in seconds."""
        at_s = self.whole_group_s("step")
        return None if self.kill is None or at_s is None else at_s - self.kill.at_s


class TimeLimitError(Exception):
    """The launcher did not end in time."""


def follow(fifo: int, launcher_pid: int, deadline_s: float) -> Iterator[Event]:
    """Every event until the launcher is gone. Raises TimeLimitError at the deadline."""
    launcher = os.pidfd_open(launcher_pid)
    try:
        rest = b""
        while True:
            timeout_s = max(0.0, deadline_s - time.monotonic())
            readable, _, _ = select.select([fifo, launcher], [], [], timeout_s)
            if not readable:
                raise TimeLimitError
            if fifo in readable:
                *lines, rest = (rest + os.read(fifo, 65536)).split(b"\n")
                for line in lines:
                    yield Event(**json.loads(line))
            else:
                return  # the launcher has ended and the FIFO is empty
    finally:
        os.close(launcher)


def is_half_way(event: Event, epochs: int) -> bool:
    return (event.restart_count, event.rank, event.event, event.epoch, event.step) == (
        0,
        VICTIM_RANK,
        "step",
        max(2, epochs // 2),  # not the first: there must be a checkpoint to go on from
        KILL_AT_STEP,
    )


def kill_worker(event: Event) -> Kill:
    at_s = time.monotonic()
    os.kill(event.pid, signal.SIGKILL)
    return Kill(event.pid, event.epoch, at_s)


def watch(fifo: int, launcher_pid: int, epochs: int, time_limit_s: float) -> Story:
    """Follow the job to its end, and kill the victim on the way."""
    story = Story()
    for event in follow(fifo, launcher_pid, time.monotonic() + time_limit_s):
        had_recovered = story.recovered_s() is not None
        story.add(event)
        if story.kill is None and is_half_way(event, epochs):
            story.kill = kill_worker(event)
            say(
                f">>> killed the worker of rank {VICTIM_RANK}, in the middle of epoch {event.epoch}"
            )
        elif story.recovered_s() is not None and not had_recovered:
            say(f">>> all {WORKERS} workers train again")
    return story


def stop(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher if it still runs, gently first."""
    if launcher.poll() is not None:
        return
    launcher.terminate()
    try:
        launcher.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def say(text: str = "") -> None:
    print(text, flush=True)


def tell_recovery(story: Story, total_s: float) -> None:
    """The total, then what it is made of. A phase ends when the last worker has ended it."""
    assert story.kill is not None
    say(f"  recovery       {total_s:.2f} s, from the kill to the first step of the new group:")
    before_s = story.kill.at_s
    for kind, meaning in PHASES:
        at_s = story.whole_group_s(kind)
        if at_s is not None:
            say(f"                 {at_s - before_s:6.2f} s  {meaning}")
            before_s = at_s


def tell(story: Story, accuracy: float | None, exit_code: int, epochs: int) -> bool:
    """Say what happened; whether it is what the demo promises."""
    recovered_s = story.recovered_s()
    say()
    say("What happened")
    if story.kill is None:
        say("  killed         nobody: the training never got half-way")
    else:
        say(
            f"  killed         the worker of rank {VICTIM_RANK} (pid {story.kill.pid}), "
            f"in epoch {story.kill.epoch} of {epochs}"
        )
    if recovered_s is None:
        say("  restarted      no: no training step was seen after the kill")
    else:
        say(
            f"  restarted      all {WORKERS} workers, "
            f"from the checkpoint of epoch {story.resumed_epoch}"
        )
    if accuracy is None:
        say(f"  test accuracy  none: the launcher ended with exit code {exit_code}")
    else:
        say(f"  test accuracy  {accuracy:.1%} (wanted: at least {ACCURACY_WANTED:.0%})")
    if recovered_s is not None:
        tell_recovery(story, recovered_s)
    return (
        exit_code == 0
        and recovered_s is not None
        and story.resumed_epoch is not None
        and accuracy is not None
        and accuracy >= ACCURACY_WANTED
    )


def read_accuracy(path: str) -> float | None:
    try:
        with open(path) as file:
            return float(json.load(file)["accuracy"])
    except FileNotFoundError:
        return None


def tell_errors(path: str, *, all_is_well: bool) -> None:
    """The launcher's own lines if all is well, otherwise the end of its stderr."""
    with open(path, errors="replace") as file:
        lines = file.read().splitlines()
    if all_is_well:
        lines = [line for line in lines if line.startswith("phalanx:")]
    if lines:
        say()
        say("What the launcher said" if all_is_well else "The end of the launcher's stderr")
    for line in lines[-40:]:
        say(f"  {line}")


def run(arguments: argparse.Namespace, directory: str) -> int:
    def path(name: str) -> str:
        return os.path.join(directory, name)

    command = [
        *shlex.split(arguments.launcher),
        f"--nproc-per-node={WORKERS}",
        "--max-restarts=1",
        TRAIN,
        f"--epochs={arguments.epochs}",
        f"--step-delay={arguments.step_delay}",
        f"--checkpoint={path('checkpoint.pt')}",
        f"--progress={path('progress')}",
        f"--final-json={path('final.json')}",
    ]
    say(f"{WORKERS} workers learn together to read handwritten digits, saving after each epoch.")
    say(
        f"Half-way, the worker of rank {VICTIM_RANK} is killed. The launcher has to get all of them"
    )
    say("going again, from the last save.")
    say()
    say(f"$ {shlex.join(command)}")

    os.mkfifo(path("progress"))
    # Open for writing too: the FIFO then has no end of file while the workers restart.
    fifo = os.open(path("progress"), os.O_RDWR | os.O_NONBLOCK)
    try:
        with open(path("stderr"), "wb") as stderr:
            launcher = subprocess.Popen(command, stderr=None if arguments.verbose else stderr)
    except OSError as error:
        say(f"\nFailed: cannot start {command[0]}: {error.strerror}.")
        return 1
    try:
        story = watch(fifo, launcher.pid, arguments.epochs, arguments.time_limit)
        exit_code = launcher.wait()
    except TimeLimitError:
        say(f"\nFailed: the launcher had not ended after {arguments.time_limit:g} s.")
        stop(launcher)
        tell_errors(path("stderr"), all_is_well=False)
        return 1
    finally:
        stop(launcher)
        os.close(fifo)
    all_is_well = tell(story, read_accuracy(path("final.json")), exit_code, arguments.epochs)
    tell_errors(path("stderr"), all_is_well=all_is_well)
    say()
    say("The group lost a worker and went on." if all_is_well else "Failed: see above.")
    return 0 if all_is_well else 1


def main(argv: Sequence[str] | None = None) -> int:
    default_launcher = shlex.join([sys.executable, "-m", "phalanx"])
    parser = argparse.ArgumentParser(
        description="Kill a worker of a training job and watch the job recover."
    )
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        default=default_launcher,
        help="what to start the workers with, with options of its own if you like "
        "(default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument(
        "--step-delay",
        type=float,
        default=0.02,
        metavar="SECONDS",
        help="rest after each training step, so that there is something to watch "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="give up after this long (default: %(default)s)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show all that the workers write to stderr"
    )
    arguments = parser.parse_args(argv)
    if arguments.epochs < 2:
        parser.error("--epochs: at least 2, since the first restart needs a checkpoint")
    if arguments.launcher == default_launcher:
        missing = [name for name in ("torch", "sklearn") if not importlib.util.find_spec(name)]
        if missing:
            say(f"The demo needs {' and '.join(missing)}, not installed for {sys.executable}.")
            say("Install: pip install torch scikit-learn")
            return 1
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as directory:
        try:
            return run(arguments, directory)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
