"""Draw progress bars: `bars.py carriage`, as tqdm does, or `bars.py up`, as rich does."""

import os
import sys
import time

rank = os.environ["RANK"]


def write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
    time.sleep(0.03)


if sys.argv[1] == "carriage":
    for done in range(21):
        write(f"\r\x1b[32m{done * 5:3d}%\x1b[0m|{'#' * done:20}| r{rank}")
    write("\n")
else:
    write("\x1b[?25l")
    for done in range(0, 101, 10):
        over = "" if done == 0 else "\r\x1b[2K\x1b[1A\x1b[2K"
        middle = "halfway\n" if done == 50 else ""
        write(f"{over}{middle}train {done}% r{rank}\neval {done}% r{rank}")
    write("\n\x1b[?25h")
