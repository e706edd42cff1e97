"""Binds and frees ports of the ephemeral range for as long as it lives, N of them at most.

    port_thief.py [N]

Standard library only.
"""

from __future__ import annotations

import random
import socket
import sys
import time


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    held: list[socket.socket] = []
    while True:
        if held and (len(held) >= most or random.random() < 0.5):
            held.pop(random.randrange(len(held))).close()
        else:
            taken = socket.socket(random.choice([socket.AF_INET, socket.AF_INET6]))
            try:
                taken.bind(("localhost", 0))
                if random.random() < 0.5:
                    taken.listen()
            except OSError:
                taken.close()
            else:
                held.append(taken)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
