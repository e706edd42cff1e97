"""A worker that uses the store over a raw socket and crashes in its first attempts.

    LAUNCHER --max-restarts=N store_client.py --dir DIR [--crashes N] [--hold]

Every rank counts itself in and waits, in the store, until all ranks are there. It writes what it
found to DIR/<round>_<rank>.json: "joined" (1 .. world size, each once, if the store was empty),
"port", "restart_count", "round". While TORCHELASTIC_RESTART_COUNT is below N (default 0) the last
rank then exits with 1 and the others wait for the store, as ranks in a collective do; after that,
all exit with 0. With --hold they wait to be stopped instead. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from store import wire

LIMIT_S = 30.0


def read(connection: socket.socket, count: int) -> bytes:
    octets = b""
    while len(octets) < count:
        piece = connection.recv(count - len(octets))
        if not piece:
            sys.exit("store_client: the store has closed the connection")
        octets += piece
    return octets


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--crashes", type=int, default=0)
    parser.add_argument("--hold", action="store_true")
    arguments = parser.parse_args()
    environ = os.environ
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    restart_count, round_ = int(environ["TORCHELASTIC_RESTART_COUNT"]), environ["PHALANX_ROUND"]

    address = (environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
    with socket.create_connection(address, timeout=LIMIT_S) as connection:
        connection.sendall(wire.GREETING + wire.add(b"joined", 1))
        joined = int.from_bytes(read(connection, 8), "little", signed=True)
        path = os.path.join(arguments.dir, f"{round_}_{rank}.json")
        found = {"joined": joined, "port": address[1], "rank": rank}
        with open(f"{path}.partial", "w") as file:
            json.dump({**found, "restart_count": restart_count, "round": int(round_)}, file)
        os.replace(f"{path}.partial", path)
        keys = [f"there/{other}".encode() for other in range(size)]
        connection.sendall(wire.set_(keys[rank], b"yes") + wire.wait(*keys))
        read(connection, 1)
        if restart_count < arguments.crashes:
            if rank == size - 1:
                os._exit(1)
            connection.settimeout(None)
            connection.sendall(wire.wait(b"never"))
            connection.recv(1)
        while arguments.hold:
            signal.pause()


if __name__ == "__main__":
    main()
