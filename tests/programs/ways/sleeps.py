"""Says that it is there, and waits to be killed."""

import os
import sys
import time

print("step 12 of 100", file=sys.stderr, flush=True)
print(f"pid {os.getpid()} rank {os.environ['RANK']}", flush=True)
time.sleep(60)
