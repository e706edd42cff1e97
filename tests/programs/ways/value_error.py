"""Rank 1 meets a bad batch; the others wait for it."""

import os
import time


def load(batch):
    if os.environ["RANK"] == "1":
        raise ValueError(f"bad batch {batch}")
    time.sleep(60)


load(7)
