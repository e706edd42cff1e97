"""`--dry-run`: what it says is what then happens, and nothing happens before."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, PROGRAMS, Run, dumps, finished
from phalanx.cli.dry_run import MADE_UP_ID, as_text
from phalanx.devices.cpulist import format_cpu_list

ENV_DUMP = str(PROGRAMS / "env_dump.py")


#: The command, telling of each process, socket and directory that it makes.
WATCHED = """
import os, sys
made = ("os.fork", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.mkdir", "socket.__new__")
sys.addaudithook(lambda event, _args: event in made and os.write(2, event.encode()))
from phalanx.cli.main import main
main()
"""


def dry(*words: str | Path, **options: Any) -> dict[str, Any]:
    run = finished("--dry-run", "--json", *words, **options)
    assert run.process.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def like(pattern: str, text: str) -> bool:
    """Is `text` what `pattern` says, a `?` being any one character but a slash?"""
    return re.fullmatch(re.escape(pattern).replace(r"\?", "[^/]"), text) is not None


CASES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "plain": ((), {}),
    "several": (("--nproc-per-node=3", "--role=trainer", "--max-restarts=2"), {}),
    "named port": (("--master-port=29777", "--nproc-per-node=2", "--rdzv-id=a/b"), {}),
    "c10d": (("--rdzv-backend=c10d", "--rdzv-id=job", "--local-addr=127.0.0.1"), {}),
    "no files": (("--log-dir=/dev/null",), {}),
    "a log directory": (("--log-dir=logs", "--nproc-per-node=2"), {}),
    "devices": (
        ("--virtual-local-rank", "--nproc-per-node=2"),
        {"CUDA_VISIBLE_DEVICES": "3, 5"},
    ),
    "threads": (("--omp=3", "--nproc-per-node=2"), {"OMP_NUM_THREADS": "7"}),
    "threads by share": (("--omp=auto", "--nproc-per-node=cpu"), {}),
    "variables": ((), {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "", "LOCAL_RANK": "9"}),
    "store in rank 0": (("--store=worker", "--nproc-per-node=2"), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_says_what_workers_then_get(name: str, tmp_path: Path) -> None:
    options, env = CASES[name]
    words = (*options, ENV_DUMP, "a b", "${local_rank}")
    env = {"TMPDIR": str(tmp_path), "DUMP_DIR": str(tmp_path), **env}
    said = dry(*words, env=env, cwd=tmp_path)
    before = sorted(tmp_path.iterdir())
    assert finished(*words, env=env, cwd=tmp_path).process.returncode == 0
    seen = dumps(tmp_path)

    assert before == []
    assert len(said["workers"]) == len(seen)
    for worker, real in zip(said["workers"], seen, strict=True):
        assert worker["command"] == real["orig_argv"]
        assert worker["cpus"] == real["affinity"]
        assert str(worker["rank"]) == real["env"]["RANK"]
        for variable, value in worker["environment"].items():
            if value == "(a free port)":
                assert int(real["env"][variable]) > 0
            else:
                assert like(value, real["env"][variable]), variable
        announced = {*worker["environment"], *env, *os.environ, "PHALANX_TEST_MARK"}
        assert {*real["env"]} - announced <= {"PYTHONPATH", "LC_CTYPE"}


def test_nothing_is_started_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("open('ran', 'w')\n")
    launcher = (sys.executable, "-c", WATCHED)
    options: dict[str, Any] = {"launcher": launcher, "cwd": tmp_path}
    options["env"] = {"TMPDIR": str(tmp_path)}
    run = finished("--dry-run", "s.py", **options)

    assert (run.process.returncode, run.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["s.py"]
    assert "os.fork" in finished("s.py", **options).stderr  # what watches sees it


def test_the_text_is_a_page_for_people(tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text("")
    env = {"PET_MAX_RESTARTS": "3", "OMP_NUM_THREADS": "4", "TMPDIR": "/tmp"}
    run = finished(
        "--dry-run", "--nproc-per-node=2", "my script.py", "--lr", "1", cwd=tmp_path, env=env
    )
    lines = [re.sub(" {2,}", "  ", line.strip()) for line in run.stdout.splitlines()]
    cpus = format_cpu_list(sorted(os.sched_getaffinity(0)))
    command = f"{sys.executable} -u 'my script.py' --lr 1"

    assert (run.process.returncode, run.stderr) == (0, "")
    assert (
        lines[0]
        == "This would be started; nothing has been. A ? stands for what is chosen at the start."
    )
    assert f"0  0  {cpus}  -  {command}" in lines
    assert f"1  1  {cpus}  -  {command}" in lines
    assert "RANK  0 | 1" in lines
    assert "WORLD_SIZE  2" in lines
    assert "MASTER_PORT  (a free port)" in lines
    assert "restarts  at most 3" in lines
    assert any(re.match(r"TORCHELASTIC_ERROR_FILE .*/attempt_0/\{0,1\}/error\.json$", line)
               for line in lines)  # fmt: skip
    assert "--nproc-per-node  2  command line" in lines
    assert "--max-restarts  3  variable PET_MAX_RESTARTS" in lines
    assert "OMP_NUM_THREADS  4  environment" in lines
    assert not any("dry-run" in line for line in lines)


def test_many_workers_share_a_line_of_a_variable() -> None:
    text = as_text(dry("--nproc-per-node=100", ENV_DUMP))

    assert re.search(r"^  RANK +0 \| 1 \| \.\.\. \| 99$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) < 250


def test_what_was_read_from_where_is_in_the_json_too() -> None:
    found = dry("--nproc-per-node=cpu", ENV_DUMP, env={"PET_ROLE": "r"})
    read = {row["what"]: (row["value"], row["from"]) for row in found["read"]}

    assert found["version"] == 1
    assert read["--nproc-per-node"] == ("cpu", "command line")
    assert read["--role"] == ("r", "variable PET_ROLE")
    assert read["usable CPUs"][0] == str(len(found["workers"]))
    assert found["job"]["run_id"] == MADE_UP_ID


def test_mistakes_are_those_of_a_real_start() -> None:
    for words in (["--dry-run", "no/such.py"], ["--dry-run", "--max-restarts=x", "s.py"]):
        said = finished(*words)
        done = finished(*words[1:])

        assert said.process.returncode == done.process.returncode != 0
        assert said.stderr == done.stderr
        assert said.stdout == ""


def test_notes_are_printed_and_are_in_the_json() -> None:
    run = finished("--dry-run", "--json", "--event-log-handler=console", ENV_DUMP)
    note = "--event-log-handler has no effect: no events are written"

    assert json.loads(run.stdout)["notes"] == [note]
    assert run.stderr == f"phalanx: {note}\n"


def test_json_without_a_dry_run_is_a_mistake() -> None:
    run = finished("--json", ENV_DUMP)

    assert run.process.returncode == 64
    assert "--json goes with --dry-run" in run.stderr


def test_a_dry_run_of_the_old_form_shows_its_argument() -> None:
    launcher = (sys.executable, "-m", "phalanx.launch")
    run = finished("--dry-run", "--json", ENV_DUMP, "a", launcher=launcher)

    assert json.loads(run.stdout)["workers"][0]["command"][-2:] == ["--local-rank=0", "a"]


def test_an_interrupt_ends_a_dry_run_as_any_program() -> None:
    """By the signal, without a traceback of ours. Before our code begins Python may show one."""
    codes = set()
    for hundredth in range(16):
        with Run("--dry-run", "--nproc-per-node=20000", ENV_DUMP) as run:
            threading.Event().wait(0.02 + hundredth / 50)  # any instant will do
            run.signal(signal.SIGINT)
            codes.add(run.wait())
            assert "internal error" not in run.stderr
    assert -signal.SIGINT in codes


def test_arguments_that_are_not_utf_8_and_that_act_on_a_screen_are_shown(tmp_path: Path) -> None:
    words = ["--dry-run", ENV_DUMP, os.fsdecode(b"\xff"), "a\x1b[31mb", "c\nd"]
    env = {"CUDA_VISIBLE_DEVICES": "1\n2"}
    run = finished(*words, env=env)

    assert run.process.returncode == 0, run.stderr
    assert "\x1b" not in run.stdout
    assert "\\udcff" in run.stdout
    assert "a\\x1b[31mb" in run.stdout
    assert "c\\nd" in run.stdout
    assert "1\\n2" in run.stdout


def test_a_reader_that_is_slow_and_a_pipe_that_does_not_block_get_it_all() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    words = [*PHALANX, "--dry-run", "--json", "--nproc-per-node=200", ENV_DUMP]
    with subprocess.Popen(words, stdout=write_end) as process:
        os.close(write_end)
        with open(read_end, "rb") as reader:
            found = json.load(reader)

    assert process.returncode == 0
    assert len(found["workers"]) == 200


def test_the_folder_of_an_odd_run_id_is_the_real_one(tmp_path: Path) -> None:
    words = ("--rdzv-backend=c10d", "--rdzv-id=..a/b" + "ü" * 200, ENV_DUMP)
    env = {"DUMP_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    said = dry(*words, env=env)["workers"][0]["environment"]["TORCHELASTIC_ERROR_FILE"]
    assert finished(*words, env=env).process.returncode == 0

    assert like(said, dumps(tmp_path)[0]["env"]["TORCHELASTIC_ERROR_FILE"])


@pytest.mark.root
def test_without_a_proc_of_our_own_it_is_refused_as_a_start_is() -> None:
    launcher = ("unshare", "--mount", "--pid", "--fork", *PHALANX)

    assert finished("--dry-run", ENV_DUMP, launcher=launcher).process.returncode == 69
    assert finished(ENV_DUMP, launcher=launcher).process.returncode == 69
