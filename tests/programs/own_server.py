"""Rank 0 binds MASTER_ADDR:MASTER_PORT itself and answers the other ranks, which come too early.

    LAUNCHER --store=worker --nproc-per-node=N own_server.py KIND --dir DIR

KIND: how rank 0 makes its server: create_server, socketserver, asyncio, http, reuseport (with
SO_REUSEPORT as well, as gRPC does), or bare (a socket without SO_REUSEADDR). torch: torch's
TCPStore, for two ranks; rank 0 waits for the file DIR/go.

Every other rank connects at once, must be refused, and leaves DIR/refused_<rank>. Rank 0 binds once
all have been. They try again until they are answered. Standard library only, but for torch.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import os
import socket
import socketserver
import sys
import time
from datetime import timedelta
from pathlib import Path

LIMIT_S = 60.0
REQUEST = b"GET / HTTP/1.0\r\n\r\n"
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def wait_for(*paths: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline_s:
            sys.exit(f"own_server: {paths} are not all there")
        time.sleep(0.01)


def answer(client: socket.socket) -> None:
    with client:
        client.recv(1024)
        client.sendall(b"welcome")


def accept_all(server: socket.socket) -> None:
    with server:
        for _ in range(SIZE - 1):
            answer(server.accept()[0])


def serve_create_server() -> None:
    accept_all(socket.create_server(ADDRESS))


def serve_reuseport() -> None:
    accept_all(socket.create_server(ADDRESS, reuse_port=True))


def serve_bare() -> None:
    server = socket.socket()
    server.bind(ADDRESS)
    server.listen()
    accept_all(server)


class Welcome(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1024)
        self.request.sendall(b"welcome")


def serve_socketserver() -> None:
    class Server(socketserver.TCPServer):
        allow_reuse_address = True

    with Server(ADDRESS, Welcome) as server:
        for _ in range(SIZE - 1):
            server.handle_request()


def serve_http() -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.HTTPServer(ADDRESS, handler) as server:
        for _ in range(SIZE - 1):
            server.handle_request()


def serve_asyncio() -> None:
    async def serve() -> None:
        answered: asyncio.Queue[None] = asyncio.Queue()

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1024)
            writer.write(b"welcome")
            writer.close()
            await writer.wait_closed()
            answered.put_nowait(None)

        async with await asyncio.start_server(welcome, *ADDRESS):
            for _ in range(SIZE - 1):
                await answered.get()

    asyncio.run(serve())


def ask() -> None:
    """Come too early once, and then again and again until there is an answer."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            client = socket.create_connection(ADDRESS, timeout=LIMIT_S)
        except ConnectionRefusedError:
            (FOLDER / f"refused_{RANK}").touch()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
            continue
        with client:
            client.sendall(REQUEST)
            if not client.recv(1024):
                sys.exit("own_server: no answer")
        return


def meet_by_torch() -> None:
    from torch.distributed import TCPStore

    if RANK == 0:
        wait_for(FOLDER / "go")
    is_libuv = os.environ.get("USE_LIBUV") != "0"
    limit = timedelta(seconds=LIMIT_S)
    store = TCPStore(*ADDRESS, SIZE, RANK == 0, timeout=limit, use_libuv=is_libuv)
    store.set(f"there/{RANK}", "yes")
    store.wait([f"there/{rank}" for rank in range(SIZE)])
    store.add("gone", 1)
    while RANK == 0 and store.add("gone", 0) < SIZE:
        time.sleep(0.01)


def main() -> None:
    if KIND == "torch":
        meet_by_torch()
    elif RANK:
        ask()
    else:
        wait_for(*(FOLDER / f"refused_{rank}" for rank in range(1, SIZE)))
        globals()[f"serve_{KIND}"]()
    os.write(1, f"rank {RANK} is done\n".encode())  # in one piece


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--dir", type=Path, required=True)
    arguments = parser.parse_args()
    KIND, FOLDER = arguments.kind, arguments.dir
    main()
