"""Rank 1 fails once the others have stopped listening to SIGTERM."""

import os
import signal
import sys
import time

folder, rank = sys.argv[1], int(os.environ["RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(folder, f"deaf_{rank}"), "w").close()
while len([name for name in os.listdir(folder) if name.startswith("deaf_")]) < int(
    os.environ["WORLD_SIZE"]
):
    time.sleep(0.01)
if rank == 1:
    raise RuntimeError("only rank 1 fails")
time.sleep(60)
