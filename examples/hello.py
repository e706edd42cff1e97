"""Say who is there, from what a worker finds in its environment."""

import os
import sys

rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
# In one write: print() makes two, and lines of several workers then mix.
sys.stdout.write(f"rank {rank} of {world_size}, pid {os.getpid()}\n")
