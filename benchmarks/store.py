"""Our store server against torch's own, side by side: throughput and start-up traffic.

    python benchmarks/store.py [--runs 5] [--ranks 256] [--seconds 1]

Needs phalanx and torch to be importable. Two measurements, in interleaved runs, medians:

- 64 clients, each in a closed loop of SET and WAIT, then GET: queries per second, and CPU time of
  the server per query (on few cores the clients are the limit, then the second figure tells more);
- what N ranks send when a NCCL group starts: connect, VALIDATE, PING, ADD `init/`; rank 0 SETs the
  128-octet id, the others WAIT and GET it. Seconds until the last rank has it, and those without
  connecting, which costs torch's server a look-up in /etc/hosts per client.

Clients are raw sockets, since torch's own would be the limit. torch's server is given an IPv4
socket: it looks up each client's name, and 127.0.0.1 is found in /etc/hosts, without DNS.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import select
import socket
import statistics
import struct
import subprocess
import sys
import time

SERVERS = {
    "phalanx": "import _socket, sys; from phalanx.net.store_server import serve; "
    "print(flush=True); serve([_socket.socket(fileno=int(sys.argv[1]))])",
    "torch": "import sys, time, torch.distributed as d; s = d.TCPStore('127.0.0.1', "
    "int(sys.argv[2]), is_master=True, wait_for_workers=False, use_libuv=True, "
    "master_listen_fd=int(sys.argv[1])); print(flush=True); time.sleep(10**6)",
}
PROCESSES = 2
CLIENTS = 64
GREETING = bytes.fromhex("00 CE F7 85 3C")
FORK = multiprocessing.get_context("fork")


def text(octets: bytes) -> bytes:
    return struct.pack("<Q", len(octets)) + octets


def wait(key: bytes) -> bytes:
    return b"\x06" + struct.pack("<Q", 1) + text(key)


def start_server(kind: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        fd, port = listener.fileno(), listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", SERVERS[kind], str(fd), str(port)],
            pass_fds=[fd],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", f"{kind} did not start"
    return process, port


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connect(port: int, count: int) -> dict[int, socket.socket]:
    clients = {}
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.send(GREETING)
        clients[client.fileno()] = client
    return clients


def converse(clients: dict[int, socket.socket], steps: list[tuple[bytes, int]], until_s: float):
    """Each client sends a step's octets and awaits its reply's, then the next; counts the steps.

    Round and round until a clock time, or once through if that is 0.
    """
    epoll = select.epoll()
    progress = {}
    for fd, client in clients.items():
        epoll.register(fd, select.EPOLLIN)
        client.send(steps[0][0])
        progress[fd] = (0, steps[0][1])
    done = 0
    while progress:
        for fd, _ in epoll.poll():
            step, missing = progress[fd]
            missing -= len(clients[fd].recv(65536)) or sys.exit("the server closed a connection")
            if not missing:
                done += 1
                step = (step + 1) % len(steps)
                if step == 0 and time.monotonic() > until_s:
                    del progress[fd]
                    continue
                clients[fd].send(steps[step][0])
                missing = steps[step][1]
            progress[fd] = (step, missing)
    return done


def throughput(worker: int, port: int, seconds: float, run: int) -> int:
    """Queries of this process's share of the clients. A GET comes as two, WAIT and GET."""
    clients = connect(port, CLIENTS // PROCESSES)
    key = b"/%d/%d" % (run, worker)
    steps = [(b"\x01" + text(key) + text(b"v" * 64) + wait(key), 1), (b"\x03" + text(key), 72)]
    return converse(clients, steps, time.monotonic() + seconds) * 3 // 2


def start_up(worker: int, port: int, ranks: int, run: int) -> float:
    """This process's share of the ranks. Seconds from their being connected and greeted."""
    clients = connect(port, ranks // PROCESSES)
    key = b"/default_pg/0//cuda//%d" % run
    converse(clients, [(b"\x0d\x01\0\0\0", 4)], 0)
    connected_s = time.monotonic()
    introduction = [(b"\x04" + text(b"init/") + struct.pack("<q", 1), 8)]
    converse(clients, introduction, 0)
    if worker == 0:
        next(iter(clients.values())).send(b"\x01" + text(key) + text(b"i" * 128))
    converse(clients, [(wait(key), 1), (b"\x03" + text(key), 136)], 0)
    return time.monotonic() - connected_s


def in_processes(measure, *arguments) -> tuple[float, list]:
    """Seconds until all processes have ended, and what they returned."""
    with FORK.Pool(PROCESSES) as pool:
        pool.map(abs, range(PROCESSES))  # they are there
        started_s = time.monotonic()
        results = pool.starmap(measure, [(w, *arguments) for w in range(PROCESSES)], chunksize=1)
        return time.monotonic() - started_s, results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--ranks", type=int, default=256)
    options.add_argument("--seconds", type=float, default=1.0)
    arguments = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    servers = {kind: start_server(kind) for kind in SERVERS}
    rates = {kind: [] for kind in SERVERS}
    costs = {kind: [] for kind in SERVERS}
    times = {kind: [] for kind in SERVERS}
    times_connected = {kind: [] for kind in SERVERS}
    for run in range(arguments.runs):
        for kind, (process, port) in servers.items():
            before_s = cpu_s(process)
            seconds, counts = in_processes(throughput, port, arguments.seconds, run)
            queries = sum(counts)
            rates[kind].append(queries / seconds)
            costs[kind].append((cpu_s(process) - before_s) / queries * 1e6)
            seconds, connected_s = in_processes(start_up, port, arguments.ranks, run)
            times[kind].append(seconds)
            times_connected[kind].append(max(connected_s))
    for process, _ in servers.values():
        process.kill()
    for name, results in (
        (f"{CLIENTS} clients, queries per second", rates),
        ("  server CPU per query, us", costs),
        (f"start-up of {arguments.ranks} ranks, s", times),
        ("  once connected, s", times_connected),
    ):
        ours, theirs = (statistics.median(results[kind]) for kind in SERVERS)
        print(f"{name:36} phalanx {ours:10.3f}  torch {theirs:10.3f}  ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
