"""The server over real sockets: what one peer does never disturbs another."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from phalanx.net import store_server
from phalanx.store.parser import REPLY_OCTETS, VALUE_OCTETS

from . import wire
from .conftest import LIMIT_S, Client, Server, poll_until, running_server

MIB = 1024 * 1024


def test_it_serves_both_address_families_on_one_store():
    with running_server(("127.0.0.1", "::1")) as server:
        server.client().ask(wire.add(b"k", 5), 8)

        assert server.client(host="::1").ask(wire.add(b"k", 0), 8) == wire.i64(5)


def test_clients_of_a_dual_stack_socket_are_reported_by_their_ipv4_address():
    with running_server(("::",)) as server:
        assert server.client(host="127.0.0.1").is_quiet()
        server.client(b"\xff", host="127.0.0.1").read_to_end()

        assert server.line().startswith("store: closed a connection from 127.0.0.1: ")


def test_accepted_sockets_have_nodelay_and_keepalive_from_the_listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store_server._prepare(listener)
        with socket.create_connection(listener.getsockname()):
            listener.settimeout(LIMIT_S)
            accepted, _ = listener.accept()

    with accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4


def test_it_imports_no_socket_module_no_asyncio_and_no_logging():
    code = "import sys, phalanx.net.store_server as s; print(*sorted(sys.modules))"
    loaded = subprocess.check_output(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0]={sys.path!r}; {code}"]
    )

    assert not {"socket", "asyncio", "logging", "threading", "typing", "enum", "dataclasses"} & set(
        loaded.decode().split()
    )


# Waiting


def test_a_waiter_is_answered_when_another_client_sets_the_key(server):
    waiter = server.client()
    waiter.send(wire.wait(b"a", b"b"))
    assert waiter.is_quiet()
    server.client().send(wire.set_(b"a", b"1") + wire.set_(b"b", b"2"))

    assert waiter.read(1) == b"\0"
    assert waiter.ask(wire.multi_get(b"b", b"a"), 18) == wire.text(b"2") + wire.text(b"1")


def test_a_wake_that_crosses_the_cancel_gives_both_octets_and_leaves_the_stream_whole(server):
    waiter, setter = server.client(), server.client()
    waiter.send(wire.wait(b"k"))
    assert waiter.is_quiet()
    setter.ask(wire.add(b"k", 1), 8)

    assert waiter.ask(wire.CANCEL_WAIT, 2) == b"\0\1"
    assert waiter.is_quiet()


def test_all_who_wait_are_answered(server):
    waiters = [server.client() for _ in range(200)]
    for waiter in waiters:
        waiter.send(wire.wait(b"k"))
        assert waiter.is_quiet()
    server.client().send(wire.set_(b"k", b""))

    assert {waiter.read(1) for waiter in waiters} == {b"\0"}


def test_a_client_killed_in_mid_wait_is_forgotten_and_others_are_woken(server):
    code = (
        "import os, socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        "s.sendall(bytes.fromhex(sys.argv[2])); s.recv(4); print('waits', flush=True); s.recv(1)"
    )
    octets = wire.GREETING + wire.wait(b"k") + wire.ping(1)
    survivor = server.client()
    survivor.send(wire.wait(b"k"))
    assert survivor.is_quiet()
    before = server.descriptors()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(server.address[1]), octets.hex()], stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"waits\n"
        os.kill(victim.pid, signal.SIGKILL)
    poll_until(lambda: server.descriptors() == before)
    server.client().send(wire.set_(b"k", b"v"))

    assert survivor.read(1) == b"\0"


def test_a_waiter_that_resets_while_it_is_woken_disturbs_nobody(server):
    waiters = [server.client() for _ in range(50)]
    for waiter in waiters:
        waiter.send(wire.wait(b"k"))
        assert waiter.is_quiet()
    for waiter in waiters[::2]:
        waiter.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
        )  # a reset
        waiter.close()
    server.client().send(wire.set_(b"k", b""))

    assert {waiter.read(1) for waiter in waiters[1::2]} == {b"\0"}


# Slow and silent clients


def test_half_a_query_then_silence_stops_nobody(server):
    silent = server.client()
    silent.send(wire.set_(b"half", b"value")[:-1])
    other = server.client()

    assert other.ask(wire.check(b"half"), 1) == b"\1"
    silent.send(b"e")
    assert silent.is_quiet()
    assert other.ask(wire.check(b"half"), 1) == b"\0"


def test_a_client_that_does_not_read_costs_bounded_memory_and_gets_all_replies_later(server):
    """Asked for: 400 MiB in 400 replies. The reference server queues them all."""
    slow, other = server.client(), server.client()
    value = os.urandom(1024) * 1024
    other.send(wire.set_(b"k", value))
    assert other.is_quiet()
    before = server.resident_octets()
    slow.send(wire.get(b"k") * 400 + wire.ping(5))
    for n in range(1, 200):
        assert other.ask(wire.add(b"n", 1), 8) == wire.i64(n)
    grown = server.resident_octets() - before
    idle_ticks = server.cpu_ticks()
    assert other.is_quiet()

    assert grown < 16 * MIB
    assert server.cpu_ticks() - idle_ticks <= 1
    for _ in range(400):
        assert slow.read(8 + len(value)) == wire.text(value)
    assert slow.read(4) == b"\5\0\0\0"
    assert slow.is_quiet()


def test_small_replies_without_a_reader_stop_the_sender_not_the_server(server):
    """The client can send only what the kernel's buffers take once its replies wait."""
    flooder, other = server.client(), server.client()
    assert other.is_quiet()
    before = server.resident_octets()
    flooder.socket.setblocking(False)
    sent = 0
    queries = wire.ping(1) * 20_000
    turns_without_progress = 0
    while turns_without_progress < 100:
        try:
            sent += flooder.socket.send(queries[sent % 5 :])
            turns_without_progress = 0
        except BlockingIOError:
            assert other.is_quiet()  # the server had a turn, and took nothing of the flood
            turns_without_progress += 1

    assert server.resident_octets() - before < 12 * MIB
    flooder.socket.settimeout(LIMIT_S)
    whole = sent // 5
    assert flooder.read(4 * whole) == b"\1\0\0\0" * whole


def test_a_paused_client_that_vanishes_is_closed(server):
    before = server.descriptors() if server.client().is_quiet() else 0
    slow = server.client()
    slow.send(wire.set_(b"k", b"v" * VALUE_OCTETS) + wire.get(b"k") * 100)
    slow.read(REPLY_OCTETS)
    slow.close()

    poll_until(lambda: server.descriptors() == before)


def test_large_values_go_round_in_one_piece(server):
    value = os.urandom(1024) * (VALUE_OCTETS // 1024)
    client = server.client()
    client.send(wire.multi_set([(b"a", value), (b"b", value)]))

    assert client.ask(wire.multi_get(b"a", b"b"), 2 * (8 + len(value))) == wire.text(value) * 2


def test_a_multi_set_in_5000_segments_is_whole_or_absent(server):
    client, other = server.client(), server.client()
    client.send(b"\x0b" + wire.u64(5000))
    for n in range(5000):
        assert n % 1000 or other.ask(wire.NUMBER_OF_KEYS, 8) == wire.i64(0)
        client.send(wire.text(b"k%d" % n) + wire.text(b"v%d" % n))
    assert client.is_quiet()

    assert other.ask(wire.NUMBER_OF_KEYS, 8) == wire.i64(5000)


# Strangers


def test_old_clients_and_strangers_are_closed_and_reported_once_per_address(server):
    for greeting in [b"GET / HTTP/1.1\r\n\r\n", wire.OLD_CLIENT, b"\xff" * 100, wire.OLD_CLIENT]:
        assert server.client(greeting).read_to_end() == b""

    assert server.line() == (
        "store: closed a connection from 127.0.0.1: not a torch client: its first octet is 0x47"
    )
    assert server.line().endswith(
        "a client of torch 2.1 or older: its protocol differs, torch 2.2 or later is needed"
    )
    assert server.client().is_quiet()
    assert not server.has_said_more()


OLD = "a client of torch 2.1 or older: its protocol differs, torch 2.2 or later is needed"


@pytest.mark.parametrize("query", wire.OLD_QUERIES)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "octet by octet"])
def test_every_query_an_old_client_may_start_with_is_closed_at_once_with_a_line(server, query, cut):
    """And takes no effect: its types mean something else in the numbering of today."""
    client = server.client(b"")
    octets = wire.OLD_QUERIES[query]
    pieces = [bytes([octet]) for octet in octets] if cut else [octets]
    with contextlib.suppress(OSError):  # closed already: five octets are enough
        for piece in pieces:
            client.send(piece)

    assert client.read_to_end() == b""
    assert server.line() == f"store: closed a connection from 127.0.0.1: {OLD}"
    assert server.client().ask(wire.NUMBER_OF_KEYS, 8) == wire.i64(0)
    assert not server.has_said_more()


def test_old_clients_are_reported_once_per_address(server):
    """Each opens two connections up to torch 2.0, and a job has many ranks."""
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    for octets in wire.OLD_QUERIES.values():
        for host in hosts:
            with socket.create_connection(server.address, LIMIT_S, (host, 0)) as client:
                client.sendall(octets)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""

    lines = [server.line() for _ in hosts]
    assert lines == [f"store: closed a connection from {host}: {OLD}" for host in hosts]
    assert server.client().is_quiet()
    assert not server.has_said_more()


def test_the_silent_second_connection_of_an_old_client_costs_nothing_but_itself(server):
    """torch up to 2.0 opens one for WATCH_KEY, and sends nothing on it."""
    first, second = server.client(b""), server.client(b"")
    first.send(wire.OLD_CLIENT)

    assert first.read_to_end() == b""
    assert server.line().endswith(OLD)
    assert server.client().is_quiet()
    second.close()
    assert not server.has_said_more()


def test_replies_and_wakes_before_a_mistake_are_still_sent(server):
    waiter, client = server.client(), server.client()
    waiter.send(wire.wait(b"k"))
    assert waiter.is_quiet()
    client.send(wire.add(b"k", 1) + b"\xff")

    assert client.read_to_end() == wire.i64(1)
    assert waiter.read(1) == b"\0"
    assert server.line().endswith("query type 255 is not known")


def test_thousands_of_rubbish_connections_disturb_nobody_and_leave_nothing(server):
    waiter = server.client()
    waiter.send(wire.wait(b"k"))
    assert waiter.is_quiet()
    descriptors, resident = server.descriptors(), server.resident_octets()
    for round_ in range(30):
        strangers = [Client(server.address, os.urandom(1) * 300) for _ in range(100)]
        for stranger in strangers:
            if round_ % 2:
                stranger.read_to_end()
            stranger.close()
    poll_until(lambda: server.descriptors() == descriptors)
    server.client().send(wire.set_(b"k", b""))

    assert waiter.read(1) == b"\0"
    assert server.resident_octets() - resident < 4 * MIB


def test_reports_are_bounded_in_number(monkeypatch):
    """Addresses are many on a network; here they are made up and the real code reports them."""
    said: list[str] = []
    server = store_server._Server([], said.append)
    for n in range(1000):
        peer = store_server._Peer(socket.socket(), f"10.0.{n // 256}.{n % 256}", None)  # type: ignore[arg-type]
        server._report_refusal(peer, store_server.ProtocolError("rubbish"))
        peer.socket.close()
    server._epoll.close()

    assert len(said) == store_server._REFUSALS_REMEMBERED + 1
    assert said[-1] == "store: further refused connections are not reported"
    assert len(server._refusals) == store_server._REFUSALS_REMEMBERED + 1


# File descriptors


def test_without_descriptors_it_says_so_once_does_not_spin_and_goes_on_when_one_is_free():
    with running_server(descriptors=30) as server:
        first = server.client()
        assert first.is_quiet()
        admitted = [server.client() for _ in range(30 - server.descriptors())]
        assert all(client.is_quiet() for client in admitted)
        outside = [server.client() for _ in range(5)]
        line = server.line()
        ticks = server.cpu_ticks()
        for client in outside:
            client.send(wire.ping(5))
            client.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.read(4)
            client.socket.settimeout(LIMIT_S)

        assert line.startswith("store: cannot accept more than 25 clients: Too many open files")
        assert server.cpu_ticks() - ticks <= 3
        for inside, waiting in zip(admitted, outside, strict=False):
            inside.close()
            assert waiting.read(4) == b"\5\0\0\0"
        assert not server.has_said_more()


def test_the_soft_limit_of_descriptors_is_raised_when_it_is_met():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        server = Server()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        clients = [server.client() for _ in range(100)]

        assert all(client.is_quiet() for client in clients)
        assert not server.has_said_more()
    finally:
        server.stop()


def test_silent_strangers_lose_their_descriptors_when_there_are_no_others(monkeypatch):
    """In this process, since it takes a clock: connected 6 s ago and nothing said."""
    now_s = [1000.0]
    monkeypatch.setattr(store_server, "monotonic", lambda: now_s[0])
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = store_server._Server([listener], said.append)
        with (
            socket.create_connection(listener.getsockname()) as silent,
            socket.create_connection(listener.getsockname()) as greeted,
        ):
            server._accept(listener)
            greeted.sendall(wire.GREETING)
            server._epoll.poll(LIMIT_S)
            for peer in list(server._peers.values()):
                server._on_readable(peer)
            now_s[0] += store_server._SILENT_S + 1
            server._pause_accepting(OSError(24, "Too many open files"))

            assert [peer.connection.greeted for peer in server._peers.values()] == [True]
            assert silent.recv(1) == b""
            assert server._retry_at_s is None
        for peer in list(server._peers.values()):
            server._close(peer)
        server._epoll.close()


# Idleness


def test_an_idle_server_with_idle_clients_uses_no_cpu_and_never_wakes(server):
    clients = [server.client() for _ in range(20)]
    assert all(client.is_quiet() for client in clients)

    def switches() -> str:
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(line for line in status if line.startswith("voluntary"))

    poll_until(lambda: server.state() == "S")
    before = switches()
    assert server.process.poll() is None
    time.sleep(0.3)  # the fact is about a stretch of time: nothing happens in it

    assert switches() == before
