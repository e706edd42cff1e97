"""Jobs beside each other on one machine, and a machine that is short of ports: no collision."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, Run

STORE_CLIENT = PROGRAMS / "store_client.py"
PORTS = range(40000, 40020)

#: In a network namespace with 20 ephemeral ports, some of which come and go: "$@".
SMALL_NETWORK = f"""
ip link set lo up || exit 1
echo '{PORTS[0]} {PORTS[-1]}' > /proc/sys/net/ipv4/ip_local_port_range || exit 1
'{PHALANX[0]}' '{PROGRAMS / "port_thief.py"}' 8 &
thief=$!
"$@"
code=$?
kill $thief
exit $code
"""
FEW_PORTS = ("unshare", "--net", "sh", "-c", SMALL_NETWORK, "sh", *PHALANX)


def both(tmp_path: Path, number: int, *words: str | Path) -> list[Run]:
    """Two runs of one command at the same time, each with a directory of its own for its last word.

    A word that is "DIR" stands for that directory.
    """
    runs = []
    with ExitStack() as stack:
        for which in ("a", "b"):
            folder = tmp_path / f"{number}{which}"
            folder.mkdir()
            named = [folder if word == "DIR" else word for word in words]
            runs.append(stack.enter_context(Run(*named)))
        for run in runs:
            run.wait()
            run.nothing_left()
    return runs


def plain_jobs(tmp_path: Path, number: int) -> None:
    """Three workers each, one restart; each job's ranks see those of their own job only."""
    client = (STORE_CLIENT, "--dir", "DIR", "--crashes", "1")
    runs = both(tmp_path, number, "--nproc-per-node=3", "--max-restarts=1", *client)

    assert [run.process.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    for which in ("a", "b"):
        check_rounds(tmp_path / f"{number}{which}", rounds=2, workers=3)


def check_rounds(folder: Path, rounds: int, workers: int) -> None:
    """So many whole rounds, each with a store of its own."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert Counter(entry["round"] for entry in found) == dict.fromkeys(range(rounds), workers)
    for number in range(rounds):
        joined = {entry["joined"] for entry in found if entry["round"] == number}
        assert joined == set(range(1, workers + 1)), f"round {number} shared its store"


def gloo_jobs(tmp_path: Path, number: int) -> None:
    out = tmp_path / str(number)
    out.mkdir()
    crash = ("--nproc-per-node=2", "--max-restarts=1", PROGRAMS / "gloo_crash.py")
    with ExitStack() as stack:
        outs = [out / "a", out / "b"]
        runs = [stack.enter_context(Run(*crash, "--out", path)) for path in outs]
        codes = [run.wait(120) for run in runs]

    assert codes == [0, 0], runs[0].stderr + runs[1].stderr
    assert [path.read_text() for path in outs] == ["OK 1 2\n"] * 2


def test_two_plain_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    for number in range(3):
        plain_jobs(tmp_path, number)


@pytest.mark.torch
def test_two_gloo_jobs_at_once_do_not_meet(tmp_path: Path) -> None:
    gloo_jobs(tmp_path, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_plain_jobs_do_not_meet_in_fifty_times(tmp_path: Path) -> None:
    for number in range(50):
        plain_jobs(tmp_path, number)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_two_gloo_jobs_do_not_meet_in_fifty_times(tmp_path: Path) -> None:
    for number in range(50):
        gloo_jobs(tmp_path, number)


def restarted_with_few_ports(tmp_path: Path, restarts: int, *options: str) -> None:
    budget = (f"--max-restarts={restarts}", "--max-restart-delay=0")
    words = ("--nproc-per-node=3", *budget, STORE_CLIENT, "--dir", tmp_path)
    with Run(*options, *words, "--crashes", str(restarts), launcher=FEW_PORTS) as run:
        code = run.wait(300)

    assert code == 0, run.stderr[-2000:]
    assert run.stderr.count("exited with code 1; restart") == restarts
    check_rounds(tmp_path, rounds=restarts + 1, workers=3)


@pytest.mark.root
@pytest.mark.parametrize("options", [(), ("--master-port=45000",)], ids=["fresh", "named"])
def test_restarts_do_not_use_up_a_small_range_of_ports(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Closed connections of the store must not wait for a minute, each on a port of its client."""
    restarted_with_few_ports(tmp_path, 25, *options)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [(), ("--master-port=45000",)], ids=["fresh", "named"])
def test_200_restarts_do_not_use_up_a_small_range_of_ports(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    restarted_with_few_ports(tmp_path, 200, *options)
