"""`--store=worker`: rank 0's program serves the store, at a port that is kept free for it."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, Run, finished
from phalanx.errors import ExitCode
from phalanx.net.held_port import hold

OWN_SERVER = PROGRAMS / "own_server.py"
GLOO_CRASH = PROGRAMS / "gloo_crash.py"
#: torch's server looks up the name of each client, and its clients that of the server. With this
#: no process of a run asks DNS, which may be slow.
NO_DNS = {"RES_OPTIONS": "attempts:0"}
#: Of the environment, as JSON, in one line per worker.
TELLS = """
import json, os, sys
names = ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT")
print(json.dumps([os.environ[name] for name in names]), flush=True)
sys.exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]))
"""
HOLDS = "import os, sys; print(os.environ['MASTER_PORT'], flush=True); sys.stdin.read()"


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def told(run: Run) -> list[list[str]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


def ephemeral() -> range:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(low), int(high) + 1)


def free_port_outside(ports: range) -> int:
    """One that the kernel gives to nobody by itself, and that nobody has now."""
    for port in range(20000, ports.start):
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            pass
    pytest.fail("no port is free")


# What workers are told


def test_workers_are_told_to_serve_the_store_and_the_port_is_fresh_in_every_round(
    tmp_path: Path,
) -> None:
    path = script(tmp_path, TELLS)
    run = finished("--store=worker", "--max-restarts=3", "--max-restart-delay=0", path, "3")

    assert run.process.returncode == 0, run.stderr
    rounds = told(run)
    assert [entry[:2] for entry in rounds] == [["False", "localhost"]] * 4
    assert all(port != after for (*_, port), (*_, after) in itertools.pairwise(rounds))


def test_a_port_that_was_named_is_the_port_of_every_round(tmp_path: Path) -> None:
    port = free_port_outside(ephemeral())
    words = ("--store=worker", f"--master-port={port}", "--max-restarts=2")
    run = finished(*words, script(tmp_path, TELLS), "2")

    assert run.process.returncode == 0, run.stderr
    assert told(run) == [["False", "127.0.0.1", str(port)]] * 3


def test_no_process_of_ours_serves(tmp_path: Path) -> None:
    """Not even when somebody connects to the port."""
    words = ("--store=worker", script(tmp_path, HOLDS))
    with Run(*words, stdin=subprocess.PIPE) as run:
        run.says("\n")
        port = int(run.stdout)
        for host in ("127.0.0.1", "::1"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))
        others = [line for pid, line in run.processes().items() if pid != run.pid]
        run.process.stdin.close()

        assert run.wait() == 0
        services = ["phalanx fork server", "phalanx writer"]
        assert sorted(others)[1:] == services, "beside the worker"


# Servers of rank 0


@pytest.mark.parametrize("kind", ["create_server", "socketserver", "asyncio", "http", "reuseport"])
def test_servers_that_set_so_reuseaddr_bind_the_held_port(tmp_path: Path, kind: str) -> None:
    """Clients that came before were refused, see the program."""
    words = ("--store=worker", "--nproc-per-node=3", OWN_SERVER, kind, "--dir", tmp_path)
    run = finished(*words)

    assert run.process.returncode == 0, run.stderr
    assert sorted(run.stdout.split("\n")) == ["", *(f"rank {rank} is done" for rank in range(3))]


@pytest.mark.torch
@pytest.mark.parametrize("use_libuv", ["1", "0"], ids=["libuv", "legacy"])
def test_torchs_client_tries_again_until_torchs_server_is_there(
    tmp_path: Path, use_libuv: str
) -> None:
    speaking = {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    words = ("--store=worker", "--nproc-per-node=2", OWN_SERVER, "torch", "--dir", tmp_path)
    with Run(*words, env={**NO_DNS, **speaking, "USE_LIBUV": use_libuv}) as run:
        run.says("Connection refused), will retry", timeout=60)
        (tmp_path / "go").touch()

        assert run.wait() == 0, run.stderr[-3000:]
        assert sorted(run.stdout.split("\n")) == ["", "rank 0 is done", "rank 1 is done"]


def test_a_server_without_so_reuseaddr_needs_a_port_that_was_named(tmp_path: Path) -> None:
    """One that the kernel gives to nobody by itself: such a port is not held."""
    words = ("--nproc-per-node=2", OWN_SERVER, "bare", "--dir", tmp_path)
    chosen = finished("--store=worker", *words)
    named = finished(*("--store=worker", f"--master-port={free_port_outside(ephemeral())}"), *words)

    assert "Address already in use" in chosen.stderr
    assert chosen.process.returncode == 1
    assert named.process.returncode == 0, named.stderr


# The port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_named_port_that_is_taken_is_two_lines_and_69(tmp_path: Path, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        words = ("--store=worker", f"--master-port={port}", script(tmp_path, TELLS), "0")
        run = finished(*words)

    assert run.process.returncode == 69
    assert run.stdout == ""
    assert run.stderr == (
        f"phalanx: error: port {port} cannot be used: Address already in use\n"
        "phalanx: hint: name another one; on one node it can be left out, and a free one is "
        "chosen\n"
    )


def test_a_named_port_is_held_only_if_the_kernel_could_give_it_away() -> None:
    ports = ephemeral()
    port, holders = hold(0)
    for holder in holders:
        holder.close()
    assert port in ports
    again, holders = hold(port)
    assert (again, len(holders)) == (port, 1)
    holders[0].close()

    outside = free_port_outside(ports)
    assert hold(outside) == (outside, [])


def test_a_named_port_that_a_job_left_in_time_wait_can_be_had_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        client = socket.create_connection(address)
        accepted, _ = server.accept()
        accepted.close()  # first: so the server's end is the one that waits
        client.close()
    with socket.socket() as bare, pytest.raises(OSError, match="in use"):
        bare.bind(address)

    _, holders = hold(address[1])

    assert len(holders) == 1
    holders[0].close()


#: Takes every port that the kernel gives away, in all the ways there are; prints what it got.
TAKES_ALL = """
import os, socket, sys
held = int(os.environ["MASTER_PORT"])
taken, kept = [], []
def take(host, reuse):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, getattr(socket, reuse), 1)
    s.bind((host, 0))
    return s
def connect(address):
    return socket.create_connection(address)
def all_of(way, *arguments):
    count, mine = 0, []
    try:
        while count < 100:
            mine.append(way(*arguments))
            taken.append(mine[-1].getsockname()[1])
            count += 1
    except OSError as error:
        assert error.errno in (98, 99), error
    assert count, (way, arguments)
    for s in mine:
        s.close()
for host in ("127.0.0.1", "127.0.0.7", "::1", "0.0.0.0", "::"):
    for reuse in ("", "SO_REUSEADDR", "SO_REUSEPORT"):
        all_of(take, host, reuse)
with socket.create_server(("127.0.0.1", 1000)) as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
    all_of(connect, ("127.0.0.1", 1000))
print(held, *sorted(set(taken)), flush=True)
socket.create_server(("127.0.0.1", held)).close()
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""
SMALL_RANGE = """
ip link set lo up && echo '40000 40007' > /proc/sys/net/ipv4/ip_local_port_range || exit 1
exec "$@"
"""


@pytest.mark.root
@pytest.mark.parametrize("options", [(), ("--master-port=40003",)], ids=["fresh", "named"])
def test_nobody_is_given_the_held_port(tmp_path: Path, options: tuple[str, ...]) -> None:
    """With so few ports that all of them are given away, the first and the second round alike."""
    launcher = ("unshare", "--net", "sh", "-c", SMALL_RANGE, "sh", *PHALANX)
    words = ("--store=worker", *options, "--max-restarts=1", script(tmp_path, TAKES_ALL))
    run = finished(*words, launcher=launcher)

    assert run.process.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        held, *taken = map(int, line.split())
        assert sorted([held, *taken]) == list(range(40000, 40008))
    assert len(run.stdout.splitlines()) == 2


HOLDS_ALL = """
from phalanx.errors import ExitCode
from phalanx.net.held_port import hold
held = [hold(0) for _ in range(8)]
assert {port for port, _ in held} == set(range(40000, 40008))
try:
    hold(0)
except OSError as error:
    assert error.errno == 98
    print("all are held")
"""


@pytest.mark.root
@pytest.mark.parametrize("reuse", "01")
def test_no_two_hold_the_same_port(tmp_path: Path, reuse: str) -> None:
    """Not even where the kernel may give the port of a socket with SO_REUSEADDR to another."""
    setting = f"echo {reuse} > /proc/sys/net/ipv4/ip_autobind_reuse" + SMALL_RANGE
    launcher = ("unshare", "--net", "sh", "-c", setting, "sh", sys.executable)

    assert finished(script(tmp_path, HOLDS_ALL), launcher=launcher).stdout == "all are held\n"


# Groups of torch


def crashing_words(out: Path, mode: str) -> tuple[str | Path, ...]:
    options = ("--store=worker", "--nproc-per-node=3", "--max-restarts=1")
    return (*options, GLOO_CRASH, "--out", out, "--mode", mode)


def crashing(tmp_path: Path, mode: str, number: int, **env: str) -> str:
    """One run of gloo_crash.py; what rank 0 wrote when the group had come back."""
    out = tmp_path / f"{mode}_{number}"
    run = finished(*crashing_words(out, mode), timeout=120, env={**NO_DNS, **env})

    assert run.process.returncode == 0, run.stderr
    assert run.stderr.count("; restart 1 of 1") == 1
    run.nothing_left()
    return out.read_text().strip()


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_gloo_group_that_loses_a_rank_comes_back(tmp_path: Path) -> None:
    modes = ("exception", "exit", "kill")

    assert [crashing(tmp_path, mode, 0) for mode in modes] == ["OK 1 3"] * 3


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_gloo_group_on_torchs_legacy_server_comes_back(tmp_path: Path) -> None:
    assert crashing(tmp_path, "kill", 0, USE_LIBUV="0") == "OK 1 3"


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["exception", "exit", "kill"])
def test_a_gloo_group_comes_back_twenty_times_of_twenty(tmp_path: Path, mode: str) -> None:
    assert [crashing(tmp_path, mode, number) for number in range(20)] == ["OK 1 3"] * 20


def two_at_once(tmp_path: Path, number: int) -> None:
    outs = [tmp_path / f"{number}{which}" for which in "ab"]
    with ExitStack() as stack:
        runs = [stack.enter_context(Run(*crashing_words(out, "kill"), env=NO_DNS)) for out in outs]
        codes = [run.wait(120) for run in runs]

    assert codes == [0, 0], runs[0].stderr + runs[1].stderr
    assert [out.read_text() for out in outs] == ["OK 1 3\n"] * 2


@pytest.mark.torch
def test_two_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    two_at_once(tmp_path, 0)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_two_jobs_do_not_meet_in_twenty_times(tmp_path: Path) -> None:
    for number in range(20):
        two_at_once(tmp_path, number)


def test_two_jobs_cannot_name_the_same_port_while_nobody_listens_there(tmp_path: Path) -> None:
    """Else workers of one would meet rank 0 of the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    sleeps = ("--no-python", "sh", "-c", "echo up; sleep 60")
    for first, second in (("worker", "worker"), ("worker", "agent"), ("agent", "worker")):
        with Run(f"--store={first}", f"--master-port={port}", *sleeps) as run:
            run.says("up")
            other = finished(f"--store={second}", f"--master-port={port}", *sleeps)

            assert other.process.returncode == ExitCode.UNAVAILABLE
            assert f"port {port} cannot be used" in other.stderr
