"""Save after every step and go on from there; rank 1 fails once, on its way to step 5."""

import os
import sys
import time

STEPS = 8
rank, restarts = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
path = f"checkpoint-{rank}"

done = 0
if os.path.exists(path):
    with open(path) as file:
        done = int(file.read())
    sys.stdout.write(f"rank {rank} goes on after step {done}, restart {restarts}\n")

for step in range(done + 1, STEPS + 1):
    if step == 5 and rank == "1" and restarts == 0:
        raise RuntimeError("a bad moment")
    time.sleep(0.05)  # a training step
    with open(f"{path}.new", "w") as file:
        file.write(str(step))
    os.replace(f"{path}.new", path)  # in one step: the old file or the new one, never half
sys.stdout.write(f"rank {rank} is done\n")
os.remove(path)
