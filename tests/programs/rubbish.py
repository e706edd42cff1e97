"""Connects to a port again and again and sends what nobody there wants.

    rubbish.py PORT COUNT SECONDS

Waits for a line on stdin, then makes COUNT connections within SECONDS, of all kinds in turn, and
prints a line. Some hundreds of half-open ones are held until stdin ends. Standard library only.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

GREETING = bytes.fromhex("00 CE F7 85 3C")
TLS_HELLO = bytes.fromhex("16 0301 00F5 01 0000F1 0303") + bytes(range(240))
RESET = struct.pack("ii", 1, 0)
#: Half-open ones are held, the oldest gives way.
MOST_HELD = 300
LIMIT_S = 20.0

held: list[socket.socket] = []


def say_and_see_it_closed(octets: bytes) -> Callable[[socket.socket], None]:
    def run(peer: socket.socket) -> None:
        with peer, suppress(ConnectionError):
            peer.sendall(octets)
            while peer.recv(4096):
                pass

    return run


def say_and_leave(octets: bytes) -> Callable[[socket.socket], None]:
    def run(peer: socket.socket) -> None:
        with peer, suppress(ConnectionError):
            peer.sendall(octets)

    return run


def say_and_stay(octets: bytes) -> Callable[[socket.socket], None]:
    def run(peer: socket.socket) -> None:
        peer.sendall(octets)
        held.append(peer)
        if len(held) > MOST_HELD:
            held.pop(0).close()

    return run


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()


def random_octets(peer: socket.socket) -> None:
    """Rubbish from the first octet on: none of those that a client could begin with."""
    say_and_see_it_closed(bytes([random.randrange(19, 256)]) + random.randbytes(400))(peer)


KINDS: tuple[Callable[[socket.socket], None], ...] = (
    random_octets,
    say_and_see_it_closed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    say_and_see_it_closed(TLS_HELLO),
    say_and_see_it_closed(GREETING + b"\xff" * 100),  # a client as far as that
    say_and_see_it_closed(bytes.fromhex("03 0500000000000000 696E69742F 0100000000000000")),
    say_and_leave(GREETING[:3]),
    say_and_leave(b""),
    reset,
    say_and_stay(GREETING[:3]),
    say_and_stay(b""),
)


def main() -> None:
    port, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    random.seed(port)
    print("ready", flush=True)
    sys.stdin.readline()
    started_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started_s + seconds * number / count - time.monotonic()))
        KINDS[number % len(KINDS)](socket.create_connection(("127.0.0.1", port), LIMIT_S))
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
