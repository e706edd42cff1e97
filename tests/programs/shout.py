"""Print many numbered lines of 100 octets, as fast as can be: `shout.py LINES [STREAM]`."""

import os
import sys

lines = int(sys.argv[1])
fd = 2 if sys.argv[2:] == ["stderr"] else 1
rank = os.environ.get("RANK", "0")
for start in range(0, lines, 500):
    block = "".join(
        f"{rank}:{number}:".ljust(99, ".") + "\n"
        for number in range(start, min(start + 500, lines))
    )
    rest = block.encode()
    while rest:
        rest = rest[os.write(fd, rest) :]
