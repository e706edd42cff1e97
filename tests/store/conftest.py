"""A store server in a process of its own, on loopback sockets, as the launcher runs it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from . import wire

#: Long enough for a loaded machine; no test waits for it unless it fails.
LIMIT_S = 20.0

SERVER = """
import _socket, os, resource, sys
descriptors, *fds = map(int, sys.argv[1:])
if descriptors:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
from phalanx.net.store_server import serve
serve([_socket.socket(fileno=fd) for fd in fds], lambda line: os.write(1, line.encode() + b"\\n"))
"""


def poll_until(condition: Callable[[], object]) -> None:
    """For what can only be seen from outside, in /proc: looks again until a time limit."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not come about"
        time.sleep(0.005)


@pytest.fixture(scope="session", autouse=True)
def _no_dns() -> None:
    """No look-up of this process asks DNS, for as long as it lives.

    torch's server looks up the name of each client, torch's client that of its server: with a slow
    resolver, seconds for each connection. glibc is told to look into /etc/hosts alone, whatever
    /etc/nsswitch.conf says; that can be done at any time, and without being root.
    """
    assert ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files") == 0


class Client:
    """A raw connection that sends and reads octets, each with a time limit."""

    def __init__(self, address: tuple[str, int], greeting: bytes = wire.GREETING) -> None:
        self.socket = socket.create_connection(address, timeout=LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(greeting)

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def read(self, count: int) -> bytes:
        octets = bytearray()
        while len(octets) < count:
            piece = self.socket.recv(min(count - len(octets), 1 << 20))
            if not piece:
                raise EOFError(f"closed after {len(octets)} of {count} octets")
            octets += piece
        return bytes(octets)

    def ask(self, query: bytes, octets: int) -> bytes:
        self.send(query)
        return self.read(octets)

    def is_quiet(self) -> bool:
        """Whether no reply has come up to now; an answered PING is the proof that none is due."""
        return self.ask(wire.ping(77), 4) == b"\x4d\0\0\0"

    def read_to_end(self) -> bytes:
        """What is left until the server closes; a reset counts as an end too."""
        octets = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(65536):
                octets += piece
        return octets

    def close(self) -> None:
        self.socket.close()


class Server:
    """The server's process. `client()` opens a raw client that is closed with the server."""

    def __init__(self, hosts: tuple[str, ...] = ("127.0.0.1",), descriptors: int = 0) -> None:
        listeners = []
        port = 0
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server(
                (host, port), family=family, backlog=4096, dualstack_ipv6=host == "::"
            )
            port = listener.getsockname()[1]
            listeners.append(listener)
        fds = [listener.fileno() for listener in listeners]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(descriptors), *map(str, fds)],
            stdout=subprocess.PIPE,
            pass_fds=fds,
        )
        for listener in listeners:
            listener.close()
        self.address = (hosts[0], port)
        self.clients: list[Client] = []

    def client(self, greeting: bytes = wire.GREETING, host: str | None = None) -> Client:
        client = Client((host or self.address[0], self.address[1]), greeting)
        self.clients.append(client)
        return client

    def line(self) -> str:
        """The next line said to the operator."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        octets = b""
        while not octets.endswith(b"\n"):
            assert select.select([fd], [], [], LIMIT_S)[0], f"only {octets!r} was said"
            octets += os.read(fd, 1) or pytest.fail("the server has ended")
        return octets.decode().rstrip("\n")

    def has_said_more(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout.fileno()], [], [], 0)[0])

    def resident_octets(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def cpu_ticks(self) -> int:
        fields = self._stat()
        return int(fields[11]) + int(fields[12])

    def state(self) -> str:
        """As in /proc: S is asleep."""
        return self._stat()[0]

    def _stat(self) -> list[str]:
        with open(f"/proc/{self.process.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running_server(
    hosts: tuple[str, ...] = ("127.0.0.1",), descriptors: int = 0
) -> Iterator[Server]:
    server = Server(hosts, descriptors)
    try:
        yield server
        assert server.process.poll() is None, "the server has ended"
    finally:
        server.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        yield server
