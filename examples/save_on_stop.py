"""Work until told to stop, then save and leave with 0."""

import os
import signal
import sys
import time

rank = os.environ["RANK"]
stop = False


def ask_to_stop(signum: int, frame: object) -> None:
    global stop
    stop = True


def say(what: str) -> None:
    sys.stdout.write(f"rank {rank} {what}\n")  # in one write, so that lines never mix


signal.signal(signal.SIGTERM, ask_to_stop)

say("works")
steps = 0
while not stop:
    time.sleep(0.01)  # a training step
    steps += 1
with open(f"saved-{rank}", "w") as file:
    file.write(f"{steps}\n")
say("has saved")
