"""Rank 1 takes memory until the kernel ends it."""

import os
import time

if os.environ["RANK"] == "1":
    kept = []
    while True:
        kept.append(bytearray(16 * 1024 * 1024))
time.sleep(60)
