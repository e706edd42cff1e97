"""Forty of the workers find the same mistake, once all are there: `forty_of_64.py DIR`."""

import os
import signal
import sys
import time

folder, rank, world_size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank % 8 < 5:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # they are too many to die in one instant
open(os.path.join(folder, f"there_{rank}"), "w").close()
while sum(name.startswith("there_") for name in os.listdir(folder)) < world_size:
    time.sleep(0.05)
if rank % 8 < 5:
    raise ValueError("the data has another shape")
time.sleep(1000)
