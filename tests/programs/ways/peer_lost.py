"""Rank 0 fails, but takes its time to go; meanwhile the others notice, and die first."""

import atexit
import os
import socket
import sys
import time

folder, rank = sys.argv[1], int(os.environ["RANK"])
path = os.path.join(folder, "socket")


def go_slowly():
    for peer in peers:
        peer.close()
    time.sleep(60)


if rank == 0:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path + ".new")
        server.listen()
        os.rename(path + ".new", path)
        peers = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    atexit.register(go_slowly)
    raise ValueError("the true cause")
while not os.path.exists(path):
    time.sleep(0.01)
with socket.socket(socket.AF_UNIX) as link:
    link.connect(path)
    link.recv(1)
    raise RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer")
