"""save_on_term.py without torch: the helpers are multiprocessing children.

    LAUNCHER save_on_term_plain.py --dir DIR [--save-seconds S]

Files in DIR, R being the rank:
- ready_R: JSON with the pid and the pids of both helpers; appears when all of them are up
- helper_R.log: a JSON line for each SIGTERM a helper sees: its pid and time.monotonic(). The helper
  then dies of that signal, as one without a handler would
- saved_R: appears when the save is complete, S seconds (default 2) after SIGTERM came

While it saves, it asks both helpers for numbers. If one has died, there is no saved_R and the exit
status is 1; otherwise it is 0. Standard library only.

torch 2.13's torchrun sends SIGTERM to the worker's whole process group: the save fails.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from types import FrameType

HELPERS = 2
PIECES = 10

stop_requested = False


def request_stop(signum: int, frame: FrameType | None) -> None:
    global stop_requested
    stop_requested = True


def log_and_die(path: str, signum: int, frame: FrameType | None) -> None:
    """Append one line, then die of the signal."""
    line = json.dumps({"pid": os.getpid(), "monotonic_s": time.monotonic()})
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def serve_numbers(connection: Connection, asker: Connection, log_path: str) -> None:
    """Answer every question with the next number, until the asker's end is closed."""
    asker.close()  # the copy that came with the fork
    signal.signal(signal.SIGTERM, functools.partial(log_and_die, log_path))
    number = 0
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(number)
        number += 1


def start_helper(log_path: str) -> tuple[int, Connection]:
    """The pid of a helper and our end of its connection."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    helper = context.Process(target=serve_numbers, args=(theirs, ours, log_path))
    helper.start()
    theirs.close()
    assert helper.pid is not None
    return helper.pid, ours


def ask(connection: Connection) -> int:
    """The helper's next number. Raises EOFError or BrokenPipeError if it has died."""
    connection.send("next")
    number = connection.recv()
    assert isinstance(number, int)
    return number


def write_whole(path: str, text: str) -> None:
    with open(f"{path}.partial", "w") as file:
        file.write(text)
    os.replace(f"{path}.partial", path)


def save(path: str, helpers: list[Connection], save_s: float) -> None:
    """Write the file in pieces, spread over `save_s` seconds."""
    with open(f"{path}.partial", "w") as file:
        for piece in range(PIECES):
            time.sleep(save_s / PIECES)
            file.write(f"piece {piece} {[ask(helper) for helper in helpers]}\n")
            file.flush()
    os.replace(f"{path}.partial", path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--save-seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    rank = os.environ["RANK"]
    signal.signal(signal.SIGTERM, request_stop)

    log_path = os.path.join(arguments.dir, f"helper_{rank}.log")
    pids, helpers = zip(*(start_helper(log_path) for _ in range(HELPERS)), strict=True)
    try:
        for helper in helpers:  # it has answered: its handler is set
            ask(helper)
        write_whole(
            os.path.join(arguments.dir, f"ready_{rank}"),
            json.dumps({"pid": os.getpid(), "helper_pids": pids}) + "\n",
        )
        while not stop_requested:
            for helper in helpers:
                ask(helper)
            time.sleep(0.01)
        save(os.path.join(arguments.dir, f"saved_{rank}"), list(helpers), arguments.save_seconds)
    finally:
        for helper in helpers:  # ends the helpers; multiprocessing waits for them
            helper.close()


if __name__ == "__main__":
    main()
