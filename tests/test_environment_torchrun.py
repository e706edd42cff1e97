"""What a worker sees under phalanx is what it sees under torchrun, but for the listed differences.

Each case runs the same program with the same words under both launchers and compares all that the
program can observe of itself. Ports, run ids and the random part of paths are compared by shape.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, PROGRAMS, dumps, finished

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]  # the first test waits for all runs

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
#: `python -m torch.distributed.launch`, which gives `--local-rank=N`; and ours.
OLD_FORMS = {
    TORCHRUN: (sys.executable, "-m", "torch.distributed.launch"),
    PHALANX: (sys.executable, "-m", "phalanx.launch"),
}
PROGRAM = str(PROGRAMS / "env_dump.py")
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
#: Set by this test itself, or by the harness.
OURS = {"DUMP_DIR", "PHALANX_TEST_MARK", "PYTEST_CURRENT_TEST"}
#: Sets what a process hands down, then becomes the launcher.
ODD_START = """
import os, resource, signal, sys
os.umask(0o027)
resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGRTMIN])
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.execv(sys.argv[1], sys.argv[1:])
"""
#: What an outer launcher, or a shell in which one was tried, leaves behind.
OUTER = {
    **dict.fromkeys("RANK LOCAL_RANK GROUP_RANK ROLE_RANK".split(), "7"),
    **dict.fromkeys("WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE".split(), "99"),
    "ROLE_NAME": "outer",
    "MASTER_ADDR": "203.0.113.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "5",
    "TORCHELASTIC_MAX_RESTARTS": "6",
    "TORCHELASTIC_RUN_ID": "outer",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR1",
    "TORCHELASTIC_TIMER_FILE": "/no/such/fifo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "OMP_NUM_THREADS": "3",
    "CUDA_VISIBLE_DEVICES": "1,0",
    "LOGLEVEL": "ERROR",
}


@dataclass(frozen=True)
class Case:
    """One command line. `{port}`, `{logs}`, `{program}` and `{python}` are filled in."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    attempts: int = 1
    prefix: tuple[str, ...] = ()
    old_form: bool = False
    #: Names of what is observed differently. Each is a row of the table of differences.
    differs: frozenset[str] = frozenset()


def case(*words: str, differs: str = "", **options: Any) -> Case:
    return Case(words, differs=frozenset(differs.split()), **options)


CASES = {
    "one": case("{program}"),
    "two": case("--nproc-per-node=2", "{program}", "--lr", "0.1", ranks=2),
    "four": case(
        "--standalone", "--nproc_per_node", "4", "{program}", "--standalone", "--nn", "3", ranks=4
    ),
    "restarts": case(
        "--master-port={port}",
        "--max-restarts=2",
        "--nproc-per-node=2",
        "{program}",
        "--fail-times=2",
        "--gather=2",
        ranks=2,
        attempts=3,
    ),
    "static endpoint": case("--rdzv-endpoint=localhost:{port}", "--rdzv-id=job7", "{program}"),
    "role": case("--role=trainer", "--nproc-per-node=2", "{program}", ranks=2),
    "module": case("-m", "env_dump", "x", "--", "y", env={"PYTHONPATH": "+" + str(PROGRAMS)}),
    "shell": case(
        "--no-python", "--nproc-per-node=2", "bash", "-c", 'exec "$@"', "bash", "{python}",
        "{program}", "${{local_rank}}", ranks=2,
    ),
    "program": case("--no-python", "{python}", "{program}", "a b", "--no-python"),
    "virtual local rank": case("--virtual-local-rank", "--nproc-per-node=2", "{program}", ranks=2),
    "virtual local rank, devices": case(
        "--virtual-local-rank", "--nproc-per-node=2", "{program}", ranks=2,
        env={"CUDA_VISIBLE_DEVICES": "3, 5 ,7"},
    ),
    "variables": case(
        "{program}", ranks=2,
        env={"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "4", "PET_ROLE": "r",
             "PET_STANDALONE": "1", "PET_SIGNALS_TO_HANDLE": "SIGUSR1,SIGTERM"},
    ),
    "outer launcher": case("--nproc-per-node=2", "{program}", ranks=2, env=OUTER),
    "empty OMP_NUM_THREADS": case(
        "--nproc-per-node=2", "{program}", ranks=2, env={"OMP_NUM_THREADS": ""}
    ),
    "c10d": case(
        "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job8",
        "--nproc-per-node=2", "{program}", ranks=2,
    ),
    "c10d, local address": case(
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1",
        "{program}",
    ),
    "log directory": case(
        "--log-dir={logs}", "--max-restarts=1", "{program}", "--fail-times=1", attempts=2
    ),
    "no log directory": case("--log-dir=/dev/null", "{program}"),
    "local rank in words": case(
        "--nproc-per-node=2", "{program}", "$local_rank", "a${{local_rank}}b", "$HOME", "$",
        "${{local_rank", "$local_ranks", "", " ", "-", ranks=2,
    ),
    "python -u": case("{program}", env={"PYTHON_EXEC": "{python}3"}),
    "old form": case("--nproc-per-node=2", "{program}", "--lr", "0.1", ranks=2, old_form=True),
    "old form, module": case(
        "-m", "env_dump", "x", env={"PYTHONPATH": "+" + str(PROGRAMS)}, old_form=True
    ),
    "old form, --use-env": case("--use_env", "{program}", "a", old_form=True),
    "old form, program": case(
        "--use-env", "--no-python", "{python}", "{program}", "a", old_form=True
    ),
    "old form, virtual local rank": case(
        "--virtual-local-rank", "--nproc-per-node=2", "{program}", ranks=2, old_form=True
    ),
    "start": case("--nproc-per-node=2", "{program}", ranks=2,
                  prefix=(sys.executable, "-c", ODD_START)),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """What the workers wrote down under each launcher, in order of attempt and rank."""

    torchrun: list[dict[str, Any]]
    phalanx: list[dict[str, Any]]
    port: int


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def run_one(name: str, launcher: tuple[str, ...], folder: Path, port: int) -> list[dict[str, Any]]:
    wanted = CASES[name]
    for part in ("dumps", "work", "logs"):
        (folder / part).mkdir(parents=True)
    values = {
        "port": str(port),
        "logs": str(folder / "logs"),
        "program": PROGRAM,
        "python": sys.executable,
    }
    words = [word.format_map(values) for word in wanted.words]
    env = {name: value.format_map(values) for name, value in wanted.env.items()}
    if path := env.get("PYTHONPATH"):
        paths = [path[1:], *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
        env["PYTHONPATH"] = ":".join(map(os.path.abspath, paths))
    if wanted.old_form:
        launcher = OLD_FORMS[launcher]
    env["DUMP_DIR"] = str(folder / "dumps")
    run = finished(*words, launcher=(*wanted.prefix, *launcher), env=env, cwd=folder.parent)
    assert run.process.returncode == 0, run.stderr
    found = dumps(folder / "dumps")
    assert len(found) == wanted.ranks * wanted.attempts, run.stderr
    return found


def run_both(name: str, folder: Path) -> Pair:
    port = free_port()
    return Pair(
        run_one(name, TORCHRUN, folder / "torchrun", port),
        run_one(name, PHALANX, folder / "phalanx", port),
        port,
    )


@pytest.fixture(scope="module")
def pair_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    """Runs a case once under both launchers; two cases at a time, before the first test."""

    def run(name: str) -> Pair:
        return run_both(name, tmp_path_factory.mktemp(re.sub(r"\W", "_", name)))

    ahead: dict[str, Future[Pair]] = {}
    if not hasattr(request.config, "workerinput"):  # with xdist others run the other cases
        with ThreadPoolExecutor(2) as pool:
            for name in wanted_cases(request):
                ahead[name] = pool.submit(run, name)

    @functools.cache
    def pair_of(name: str) -> Pair:
        return ahead[name].result() if name in ahead else run(name)

    return pair_of


def wanted_cases(request: pytest.FixtureRequest) -> list[str]:
    """The cases that the selected tests of this file ask for."""
    found = []
    for item in request.session.items:
        if item.path == request.path:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            found += [params["name"]] if "name" in params else []
    return [name for name in CASES if name in found]


# How observations are compared


def by_shape(env: dict[str, str], name: str, wanted: Case, port: int) -> dict[str, str]:
    """The variables, with what is random by nature replaced by its shape."""
    words = " ".join(wanted.words)
    shaped = {name: value for name, value in env.items() if name not in OURS}
    if "{port}" not in words or "c10d" in words:
        assert 1024 <= int(shaped["MASTER_PORT"]) < 65536
        assert shaped["MASTER_PORT"] != str(port)
        shaped["MASTER_PORT"] = "a free port"
    run_id = shaped["TORCHELASTIC_RUN_ID"]
    if re.fullmatch(UUID, run_id):
        shaped["TORCHELASTIC_RUN_ID"] = "a random one"
    if shaped["TORCHELASTIC_ERROR_FILE"]:
        base, _, rest = shaped["TORCHELASTIC_ERROR_FILE"].partition(f"/{run_id}_")
        assert re.match(r"\w{8}/attempt_\d+/\d+/error\.json$", rest), rest
        assert Path(base).is_absolute()
        logs = "given" if base.endswith("/logs") else "temporary"
        shaped["TORCHELASTIC_ERROR_FILE"] = f"{logs}/{rest[9:]}"
    return shaped


def differences(theirs: dict[str, Any], ours: dict[str, Any], name: str, port: int) -> set[str]:
    wanted = CASES[name]
    found = set()
    their_env = by_shape(theirs["env"], name, wanted, port)
    our_env = by_shape(ours["env"], name, wanted, port)
    for variable in their_env.keys() | our_env.keys():
        if their_env.get(variable) != our_env.get(variable):
            found.add(variable)
    for launched in (theirs, ours):
        launched["leads its session"] = launched["pid"] == launched["pgid"] == launched["sid"]
        launched["files"] = {
            fd: re.sub(r"\d+", "N", target) for fd, target in launched["files"].items()
        }
    for key in theirs.keys() - {"env", "pid", "ppid", "pgid", "sid"}:
        if theirs[key] != ours[key]:
            found.add(key)
    return found


#: In every case.
ALWAYS = {"PHALANX_ROUND"}
#: Where the rendezvous is c10d and no address is given: torchrun looks this host's name up.
BY_NAME = {"MASTER_ADDR"} if socket.getfqdn() != "localhost" else set()


def expected(name: str) -> set[str]:
    words = " ".join(CASES[name].words)
    is_c10d = "{port}" not in words or "c10d" in words
    return (
        ALWAYS | CASES[name].differs | (BY_NAME if is_c10d and "local-addr" not in words else set())
    )


@pytest.mark.parametrize("name", CASES)
def test_a_worker_sees_what_it_sees_under_torchrun(
    name: str, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)

    for theirs, ours in zip(pair.torchrun, pair.phalanx, strict=True):
        found = differences(theirs, ours, name, pair.port)
        shown = {
            key: (theirs["env"].get(key, theirs.get(key)), ours["env"].get(key, ours.get(key)))
            for key in found
        }
        assert found == expected(name), shown


def values(launched: list[dict[str, Any]], variable: str) -> list[str]:
    return [each["env"].get(variable) for each in launched]


@pytest.mark.parametrize("name", ["restarts"])
def test_a_port_that_is_named_is_master_port_in_every_round(
    name: str, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)

    assert set(values(pair.torchrun, "MASTER_PORT")) == {str(pair.port)}
    assert set(values(pair.phalanx, "MASTER_PORT")) == {str(pair.port)}
    assert values(pair.phalanx, "TORCHELASTIC_RESTART_COUNT") == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("name", ["log directory"])
def test_a_port_of_our_choice_is_a_fresh_one_in_every_round(
    name: str, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)

    assert len(set(values(pair.torchrun, "MASTER_PORT"))) == 1
    assert len(set(values(pair.phalanx, "MASTER_PORT"))) == 2


@pytest.mark.parametrize("name", ["restarts"])
def test_the_round_is_counted_up(name: str, pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of(name)

    assert values(pair.torchrun, "PHALANX_ROUND") == [None] * 6
    assert values(pair.phalanx, "PHALANX_ROUND") == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("name", ["c10d"])
def test_the_endpoint_is_master_addr_and_no_name_is_looked_up(
    name: str, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)

    assert set(values(pair.torchrun, "MASTER_ADDR")) == {socket.getfqdn()}
    assert set(values(pair.phalanx, "MASTER_ADDR")) == {"localhost"}


@pytest.mark.parametrize("name", ["two"])
def test_a_worker_leads_its_session_and_writes_unbuffered(
    name: str, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)

    for launched in (*pair.torchrun, *pair.phalanx):
        assert launched["pid"] == launched["pgid"] == launched["sid"]
        assert launched["unbuffered"]
        assert launched["orig_argv"] == [sys.executable, "-u", PROGRAM, "--lr", "0.1"]
        assert launched["argv"] == [PROGRAM, "--lr", "0.1"]
        assert launched["env"]["OMP_NUM_THREADS"] == "1"
