"""What phalanx does where it differs from torchrun: each row of the table names a test here.

The second half shows torchrun's side, for what the table says of it and can be seen in seconds.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PHALANX, SLACK, Run, eventually, finished
from phalanx.differences import DIFFERENCES, GROUPS, Difference

CHECKOUT = Path(__file__).parent.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a test's runs, with a temporary directory of their own in it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "words.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))\n")
    return tmp_path


def words_seen(work: Path, *words: str, launcher: tuple[str, ...] = PHALANX) -> list[str]:
    run = finished(*words, launcher=launcher, cwd=work)
    assert run.process.returncode == 0, run.stderr
    seen: list[str] = json.loads(run.stdout)
    return seen


# The table


def names_of_tests(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.what)
def test_every_row_names_a_test_that_there_is(row: Difference) -> None:
    path, _, name = row.test.partition("::")

    assert name in names_of_tests(CHECKOUT / path)
    assert row.group in GROUPS


def test_every_row_is_filled_in_and_has_a_test_of_its_own() -> None:
    for row in DIFFERENCES:
        assert all((row.what, row.torchrun, row.phalanx, row.why, row.restore)), row
        assert not any("\n" in text for text in row._values()), row
    assert len({row.what for row in DIFFERENCES}) == len(DIFFERENCES)
    assert len({row.test for row in DIFFERENCES}) == len(DIFFERENCES)


def test_every_test_of_this_file_belongs_to_a_row() -> None:
    named = {row.test.partition("::")[2] for row in DIFFERENCES}
    about_the_table = {name for name in names_of_tests(Path(__file__)) if "_row" in name}

    assert names_of_tests(Path(__file__)) - about_the_table - {"test_what_torchrun_does"} <= named


# Command line


def test_script_arguments_are_never_taken_for_options(work: Path) -> None:
    args = ["--log", "x", "--nproc", "3", "--max=1", "-h", "--r", "3"]

    assert words_seen(work, "words.py", *args) == args


def test_two_dashes_after_the_script_are_the_scripts(work: Path) -> None:
    assert words_seen(work, "words.py", "--", "b") == ["--", "b"]


def test_two_dollars_stay_two(work: Path) -> None:
    assert words_seen(work, "words.py", "a$$b", "$${local_rank}") == ["a$$b", "$${local_rank}"]


def test_one_option_in_two_spellings_is_not_ambiguous(work: Path) -> None:
    assert words_seen(work, "--nproc", "1", "--max", "0", "words.py") == []


def test_a_wrong_command_line_is_two_lines_and_64(work: Path) -> None:
    run = finished("--nnodes=0", "words.py", cwd=work)

    assert run.process.returncode == 64
    assert len(run.stderr.splitlines()) == 2


def test_flag_variables_take_words(work: Path) -> None:
    run = finished("words.py", cwd=work, env={"PET_STANDALONE": "true", "PET_MODULE": "off"})

    assert run.process.returncode == 0


def test_choices_of_variables_are_checked(work: Path) -> None:
    run = finished("words.py", cwd=work, env={"PET_START_METHOD": "bogus"})

    assert run.process.returncode == 64


def test_options_of_our_own() -> None:
    run = finished("--help")

    stopping = ("stop-signal-to", "restart-on", "max-restart-delay", "failure-grace")
    for name in ("version", *stopping, "store", "omp", "dry-run", "json"):
        assert f"  --{name} " in run.stdout


def test_unknown_settings_of_the_rendezvous_are_named(work: Path) -> None:
    run = finished("--rdzv-conf=max_nodes=3,a=1", "words.py", cwd=work)

    assert run.process.returncode == 0
    assert run.stderr == "phalanx: --rdzv-conf: ignored, not known: max_nodes, a\n"


def test_settings_of_the_rendezvous_have_no_effect_on_one_node(work: Path) -> None:
    conf = "join_timeout=0.5,last_call_timeout=x,is_host=0,read_timeout=-1"
    run = finished("--rdzv-backend=c10d", f"--rdzv-conf={conf}", "words.py", cwd=work)

    assert (run.process.returncode, run.stderr) == (0, "")


def test_signals_that_cannot_be_handled(work: Path) -> None:
    """And the workers' list has only the signals that there are."""
    refused = finished("--signals-to-handle=SIGKILL", "words.py", cwd=work)
    (work / "names.py").write_text("import os; print(os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'])")
    run = finished("--signals-to-handle=SIGTERM, SIGBOGUS", "names.py", cwd=work)

    assert refused.process.returncode == 64
    assert run.stdout == "SIGTERM\n"


def test_torchs_shutdown_variable_is_checked(work: Path) -> None:
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-5"}

    assert finished("words.py", cwd=work, env=env).process.returncode == 64


def test_a_word_for_a_device_that_we_do_not_know(work: Path) -> None:
    assert finished("--nproc-per-node=npu", "words.py", cwd=work).process.returncode == 64


def test_a_node_rank_beyond_the_nodes(work: Path) -> None:
    run = finished("--node-rank=1", "--master-port=1234", "words.py", cwd=work)

    assert run.process.returncode == 64


# Rendezvous, addresses and ports

#: In one write, since lines of several workers that print() would be torn apart.
TELLS = """
import os, sys
os.write(1, (" ".join(os.environ[name] for name in sys.argv[1:]) + "\\n").encode())
"""


def variables(work: Path, names: list[str], *words: str) -> str:
    (work / "tells.py").write_text(TELLS)
    run = finished(*words, "tells.py", *names, cwd=work)
    assert run.process.returncode == 0, run.stderr
    return run.stdout


def test_master_port_zero_is_a_free_one(work: Path) -> None:
    for option in ("--master-port=0", "--rdzv-endpoint=127.0.0.1:0"):
        assert int(variables(work, ["MASTER_PORT"], option)) >= 1024


def test_a_run_id_with_a_slash(work: Path) -> None:
    words = ["--rdzv-backend=c10d", "--rdzv-id=a/b", "--log-dir=logs"]

    assert variables(work, ["TORCHELASTIC_RUN_ID"], *words) == "a/b\n"
    assert sorted(path.name[:4] for path in (work / "logs").iterdir()) == ["a_b_", "late"]


def test_the_address_is_the_one_given_and_no_name_is_looked_up(work: Path) -> None:
    c10d = ("--rdzv-backend=c10d", "--rdzv-endpoint=no-such-host.invalid:1234")

    assert variables(work, ["MASTER_ADDR"]) == "localhost\n"
    assert variables(work, ["MASTER_ADDR"], *c10d) == "localhost\n"
    assert variables(work, ["MASTER_ADDR"], *c10d, "--local-addr=10.1.1.1") == "10.1.1.1\n"


def listeners(pids: set[int]) -> set[tuple[str, int]]:
    """(hexadecimal address, port) of every listening TCP socket of these processes."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add((address, int(port, 16)))
    return found


def test_on_one_node_only_the_workers_store_listens_and_on_loopback(work: Path) -> None:
    (work / "waits.py").write_text("import sys; print('up', flush=True); sys.stdin.read()")
    with Run("--standalone", "waits.py", cwd=work, stdin=subprocess.PIPE) as run:
        run.says("up")
        found = listeners({*run.processes()})
        run.process.stdin.close()
        run.wait()

    assert len({port for _address, port in found}) == 1
    assert {address for address, _port in found} <= {"0100007F", "0" * 24 + "01000000"}


def test_the_store_of_a_round_is_empty(work: Path) -> None:
    """The port differs, too: a client of the last round finds nobody."""
    (work / "s.py").write_text(
        "import os, sys; print(os.environ['MASTER_PORT'], flush=True)\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    )
    run = finished("--max-restarts=1", "s.py", cwd=work)

    assert len(set(run.stdout.split())) == 2


def test_settings_of_torchs_store_and_rank_exchange_have_no_effect(work: Path) -> None:
    (work / "tells.py").write_text(TELLS)
    names = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_ELASTIC_WORKER_IDENTICAL", "USE_LIBUV")
    env = dict.fromkeys(names, "1")
    run = finished("tells.py", "TORCHELASTIC_USE_AGENT_STORE", cwd=work, env=env)

    assert run.stdout == "True\n"


# What a worker sees


def test_workers_are_told_the_round(work: Path) -> None:
    assert variables(work, ["PHALANX_ROUND"]) == "0\n"


def test_error_files_of_a_relative_log_directory_are_absolute(work: Path) -> None:
    path = variables(work, ["TORCHELASTIC_ERROR_FILE"], "--log-dir=logs").strip()

    assert path.startswith(f"{work}/logs/")


IGNORES_HUP = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); \
os.execv(sys.argv[1], sys.argv[1:])"


def test_a_hangup_that_is_ignored_at_the_start_stays_ignored(work: Path) -> None:
    (work / "s.py").write_text(
        "import signal; print(signal.getsignal(signal.SIGHUP).name, flush=True); input()"
    )
    launcher = (sys.executable, "-c", IGNORES_HUP, *PHALANX)
    with Run("s.py", launcher=launcher, cwd=work, stdin=subprocess.PIPE) as run:
        run.says("SIG_IGN")
        run.signal(signal.SIGHUP)
        run.process.stdin.write(b"\n")
        run.process.stdin.close()

        assert run.wait() == 0


INHERITS = "import os; print(os.path.exists('/proc/self/fd/57'))"


def test_descriptors_that_phalanx_was_given_reach_the_workers(work: Path) -> None:
    (work / "s.py").write_text(INHERITS)
    launcher = ("sh", "-c", 'exec 57</dev/null "$@"', "sh", *PHALANX)
    run = finished("s.py", launcher=("bash", *launcher[1:]), cwd=work)

    assert run.stdout == "True\n"


def test_run_path_workers_are_fresh_and_lead_a_session(work: Path) -> None:
    (work / "s.py").write_text(
        "import os, sys; print(os.getsid(0) == os.getpid(), 'multiprocessing' in sys.modules)"
    )
    run = finished("--run-path", "--start-method=forkserver", "s.py", cwd=work)

    assert run.stdout == "True False\n"


def test_a_bare_exit_ends_a_run_path_worker(work: Path) -> None:
    (work / "s.py").write_text("import sys; sys.exit()")

    assert finished("--run-path", "s.py", cwd=work).process.returncode == 0


def test_a_workers_parent_is_the_fork_server(work: Path) -> None:
    (work / "s.py").write_text("import os; print(os.getppid(), flush=True); input()")
    with Run("s.py", cwd=work, stdin=subprocess.PIPE) as run:
        parent = run.fork_server
        run.says(str(parent))
        run.process.stdin.close()
        run.wait()

    assert parent != run.pid


# Starting and noticing


def test_what_cannot_run_is_found_before_anything_is_started(work: Path) -> None:
    run = finished("--nproc-per-node=4", "nope.py", cwd=work)

    assert run.process.returncode == 66
    assert run.stderr.splitlines()[0] == "phalanx: error: there is no file nope.py"


def test_the_monitor_interval_has_no_effect(work: Path) -> None:
    """With a poll every 1000 s torchrun would not notice this end within the test's limit."""
    run = finished("--monitor-interval=1000", "words.py", cwd=work)

    assert run.process.returncode == 0


# Stopping

#: The leader says what it gets; its child, in the same group, too. Both go on.
FAMILY = """
import os, signal, sys
name = "leader"
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(signum, lambda n, _: print(f"{name} {signal.Signals(n).name}", flush=True))
read_end, write_end = os.pipe()
if os.fork() == 0:
    name = "helper"
    os.write(write_end, b"x")
else:
    os.read(read_end, 1)
    print("up", flush=True)
while True:
    signal.pause()
"""


def family(work: Path, *words: str) -> Run:
    (work / "family.py").write_text(FAMILY)
    run = Run(*words, "family.py", cwd=work)
    run.says("up")
    return run


def test_the_stop_signal_goes_to_the_leader_first(work: Path) -> None:
    with family(work, "--shutdown-timeout=600") as run:
        run.signal(signal.SIGINT)
        run.says("leader SIGINT")
        assert "helper" not in run.stdout
    with family(work, "--shutdown-timeout=600", "--stop-signal-to=group") as run:
        run.signal(signal.SIGINT)
        run.says("leader SIGINT")
        run.says("helper SIGINT")


def test_the_shutdown_timeout_holds_after_a_failure_too(work: Path) -> None:
    """torchrun takes its 30 s here, whatever is asked for."""
    (work / "s.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '1': open('up', 'w')\n"
        "while not os.path.exists('up'): time.sleep(0.01)\n"
        "if os.environ['RANK'] == '0': sys.exit(5)\n"
        "time.sleep(600)\n"
    )
    run = finished("--nproc-per-node=2", "--shutdown-timeout=0", "s.py", cwd=work, timeout=15)

    assert run.process.returncode == 5
    assert "killed at the end of the shutdown timeout: local rank 1" in run.stderr


def test_helpers_are_gone_when_phalanx_is(work: Path) -> None:
    (work / "s.py").write_text(
        "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    signal.pause()\n"
    )
    with Run("--shutdown-timeout=0", "s.py", cwd=work) as run:
        assert run.wait() == 0
        assert run.processes() == {}


def test_a_second_interrupt_kills_at_once(work: Path) -> None:
    with family(work, "--shutdown-timeout=600") as run:
        run.signal(signal.SIGINT)
        run.says("leader SIGINT")
        # Two within 0.2 s count as one, and how fast we are is not known: press until it is heard.
        eventually(lambda: run.process.poll() is not None or run.signal(signal.SIGINT), 10 * SLACK)

        assert run.wait() == 120
        assert run.processes() == {}


def test_nothing_outlives_a_killed_agent(work: Path) -> None:
    with family(work) as run:
        run.signal(signal.SIGKILL)

        run.nothing_left(2.0 * SLACK)


def test_user_signals_are_handed_on_and_the_job_goes_on(work: Path) -> None:
    with family(work, "--shutdown-timeout=0") as run:
        run.signal(signal.SIGUSR1)
        run.says("leader SIGUSR1")
        run.signal(signal.SIGTERM)

        assert run.wait() == 120


def test_a_stop_on_request_has_an_exit_code_of_its_own(work: Path) -> None:
    (work / "s.py").write_text(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('up', flush=True)\nsignal.pause()\n"
    )
    with Run("s.py", cwd=work) as run:
        run.says("up")
        run.signal(signal.SIGTERM)

        assert run.wait() == 120
    assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"


# Failures


def test_exit_codes_are_the_workers_own(work: Path) -> None:
    (work / "s.py").write_text("import sys; exec(sys.argv[1])")

    assert finished("s.py", "sys.exit(7)", cwd=work).process.returncode == 7
    killed = finished("s.py", "import os; os.kill(os.getpid(), 9)", cwd=work)
    assert killed.process.returncode == 137


def test_the_report_of_a_failure_comes_last_and_has_no_traceback_of_ours(work: Path) -> None:
    (work / "s.py").write_text("raise SystemExit(3)")
    run = finished("s.py", cwd=work)

    lines = run.stderr.splitlines()
    assert lines[0] == "phalanx: error: rank 0 exited with code 3"
    assert lines[1:3] == ["Root Cause (first observed failure):", "  rank      : 0 (local_rank: 0)"]
    assert re.fullmatch(r"  exitcode  : 3 \(pid: \d+\)", lines[3])
    assert "Traceback" not in run.stderr


def test_the_error_file_of_the_launcher_itself_is_written_for_any_exception(work: Path) -> None:
    (work / "s.py").write_text("raise ValueError('boom')")
    for option in ([], ["--run-path"]):
        reply = work / "reply.json"
        env = {"TORCHELASTIC_ERROR_FILE": str(reply)}
        run = finished(*option, "s.py", cwd=work, env=env)

        assert run.process.returncode == 1
        told = json.loads(reply.read_text())["message"]
        assert told["message"] == "ValueError: boom"
        assert "s.py" in told["extraInfo"]["py_callstack"]
        reply.unlink()


def test_an_odd_error_file_is_no_trouble(work: Path) -> None:
    (work / "s.py").write_text(
        "import os, sys\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{')\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    )

    assert finished("--max-restarts=1", "s.py", cwd=work).process.returncode == 0


def test_watchdog_health_check_and_d_state_settings_are_said_to_have_no_effect(work: Path) -> None:
    (work / "s.py").write_text("import os; print('TORCHELASTIC_TIMER_FILE' in os.environ)")
    env = {
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "TORCHELASTIC_HEALTH_CHECK_PORT": "1",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "1",
    }
    run = finished("s.py", cwd=work, env=env)

    assert (run.process.returncode, run.stdout) == (0, "False\n")
    said = [line.split(": ")[1] for line in run.stderr.splitlines()]
    assert said == [f"{name} has no effect" for name in env]


# Output and files


def test_no_banner_about_omp_num_threads(work: Path) -> None:
    (work / "tells.py").write_text(TELLS)
    run = finished("--nproc-per-node=2", "tells.py", "OMP_NUM_THREADS", cwd=work)

    assert (run.stdout, run.stderr) == ("1\n1\n", "")


def test_no_warnings_about_what_was_not_asked_for(work: Path) -> None:
    run = finished("--rdzv-backend=c10d", "words.py", cwd=work)

    assert run.stderr == ""


def test_the_temporary_directory_goes_when_all_is_well(work: Path) -> None:
    (work / "tells.py").write_text(TELLS)
    run = finished("tells.py", "TORCHELASTIC_ERROR_FILE", cwd=work)

    assert run.stdout.startswith(f"{work}/tmp/phalanx_")
    assert [*(work / "tmp").iterdir()] == []


@pytest.mark.parametrize("level", ["INFO", "debug", "WARNING", "", "loud"])
def test_loglevel_info_tells_what_is_done(work: Path, level: str) -> None:
    run = finished("--nproc-per-node=2", "words.py", cwd=work, env={"LOGLEVEL": level})

    told = ("round 0: starting 2 workers, ranks 0 to 1 of 2", "rank 1 runs", "rank 0 exited with")
    if level in ("INFO", "debug"):
        assert all(text in run.stderr for text in told), run.stderr
    else:
        assert run.stderr == ""


def test_a_restart_is_said_in_a_line(work: Path) -> None:
    (work / "s.py").write_text(
        "import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    )
    run = finished("--max-restarts=3", "s.py", cwd=work)

    assert re.fullmatch(
        r"phalanx: rank 0 \(local rank 0, pid \d+\) exited with code 1; restart 1 of 3\n",
        run.stderr,
    )


# Not yet


def test_several_nodes_are_refused(work: Path) -> None:
    assert finished("--nnodes=1:2", "words.py", cwd=work).process.returncode == 69


def test_etcd_is_refused(work: Path) -> None:
    assert finished("--rdzv-backend=etcd-v2", "words.py", cwd=work).process.returncode == 69


def test_event_handlers_are_said_to_be_without_effect(work: Path) -> None:
    run = finished("--event-log-handler=console", "words.py", cwd=work)

    assert run.stderr == "phalanx: --event-log-handler has no effect: no events are written\n"


def test_plug_ins_for_logs_are_refused(work: Path) -> None:
    run = finished("--logs-specs=mine", "words.py", cwd=work)

    assert run.process.returncode == 64
    assert "cannot be loaded without torch" in run.stderr


def test_plug_in_back_ends_are_refused(work: Path) -> None:
    run = finished("--rdzv-backend=mine", "words.py", cwd=work)

    assert run.process.returncode == 64
    assert "plug-ins for torchrun are made of torch" in run.stderr


def test_a_file_to_meet_at_is_not_needed(work: Path) -> None:
    words = ["--rdzv-backend=c10d", "--rdzv-endpoint=/tmp/file", "words.py"]
    file = finished("--rdzv-conf=store_type=file", *words, cwd=work)
    other = finished("--rdzv-conf=store_type=x", *words, cwd=work)

    assert (file.process.returncode, other.process.returncode) == (0, 64)
    assert file.stderr == (
        "phalanx: --rdzv-conf: store_type=file is ignored: one node needs no file to meet at\n"
    )


def test_the_start_method_has_no_effect(work: Path) -> None:
    script = finished("--start-method=fork", "words.py", cwd=work)
    path = finished("--start-method=fork", "--run-path", "words.py", cwd=work)

    assert (script.process.returncode, script.stderr) == (0, "")
    assert path.process.returncode == 0
    assert path.stderr == (
        "phalanx: --start-method has no effect: workers are always started afresh\n"
    )


def test_the_old_form_is_a_module_of_its_own(work: Path) -> None:
    old = (sys.executable, "-m", "phalanx.launch")
    run = finished("words.py", "a", launcher=old, cwd=work)

    assert (json.loads(run.stdout), run.stderr) == (["--local-rank=0", "a"], "")
    assert words_seen(work, "--use-env", "words.py", "a", launcher=old) == ["a"]
    assert finished("--use-env", "words.py", cwd=work).process.returncode == 64


def test_there_is_no_python_interface() -> None:
    import phalanx

    assert phalanx.__all__ == ["__version__"]


# torchrun's side

Check = Callable[[Path], None]


def t_ambiguous(work: Path) -> None:
    run = finished("words.py", "--log", "x", launcher=TORCHRUN, cwd=work)
    assert run.process.returncode == 2
    assert "ambiguous option" in run.stderr
    assert finished("--nproc", "1", "words.py", launcher=TORCHRUN, cwd=work).process.returncode == 2


def t_words(work: Path) -> None:
    seen = words_seen(work, "words.py", "--", "a$$b", launcher=TORCHRUN)
    assert seen == ["a$b"]


def t_variables(work: Path) -> None:
    env = {"PET_STANDALONE": "true"}
    run = finished("words.py", launcher=TORCHRUN, cwd=work, env=env)
    assert run.process.returncode == 1
    assert "ValueError" in run.stderr
    env = {"PET_START_METHOD": "bogus"}
    assert finished("words.py", launcher=TORCHRUN, cwd=work, env=env).process.returncode == 0


def t_exit_codes(work: Path) -> None:
    (work / "s.py").write_text("raise SystemExit(7)")
    run = finished("s.py", launcher=TORCHRUN, cwd=work)
    assert run.process.returncode == 1
    assert "Root Cause (first observed failure)" in run.stderr
    assert [path.name[:13] for path in (work / "tmp").iterdir()] == ["torchelastic_"]


def t_hangup(work: Path) -> None:
    (work / "s.py").write_text("import signal; print(signal.getsignal(signal.SIGHUP).name)")
    launcher = (sys.executable, "-c", IGNORES_HUP, *TORCHRUN)
    assert finished("s.py", launcher=launcher, cwd=work).stdout == "SIG_DFL\n"


def t_descriptors(work: Path) -> None:
    (work / "s.py").write_text(INHERITS)
    launcher = ("bash", "-c", 'exec 57</dev/null "$@"', "bash", *TORCHRUN)
    assert finished("s.py", launcher=launcher, cwd=work).stdout == "False\n"


def t_run_id(work: Path) -> None:
    words = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=a/b", "words.py"]
    run = finished(*words, launcher=TORCHRUN, cwd=work)
    assert run.process.returncode == 1
    assert "FileNotFoundError" in run.stderr


def t_agent_store(work: Path) -> None:
    (work / "tells.py").write_text(TELLS)
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    words = ["tells.py", "TORCHELASTIC_USE_AGENT_STORE"]
    assert finished(*words, launcher=TORCHRUN, cwd=work, env=env).stdout == "False\n"


def t_listens(work: Path) -> None:
    (work / "waits.py").write_text("import sys; print('up', flush=True); sys.stdin.read()")
    launcher = TORCHRUN
    with Run("waits.py", launcher=launcher, cwd=work, stdin=subprocess.PIPE) as run:
        run.says("up")
        found = listeners({*run.processes()})
        run.process.stdin.close()
        run.wait()
    assert {address for address, _port in found} & {"0" * 8, "0" * 32}


def t_relative(work: Path) -> None:
    (work / "tells.py").write_text(TELLS)
    words = ["--log-dir=logs", "tells.py", "TORCHELASTIC_ERROR_FILE"]
    assert finished(*words, launcher=TORCHRUN, cwd=work).stdout.startswith("logs/")


def t_old_form(work: Path) -> None:
    old = (sys.executable, "-m", "torch.distributed.launch")
    run = finished("words.py", "a", launcher=old, cwd=work)
    assert json.loads(run.stdout) == ["--local-rank=0", "a"]
    assert "FutureWarning" in run.stderr


def t_orphans(work: Path) -> None:
    (work / "family.py").write_text(FAMILY)
    with Run("family.py", launcher=TORCHRUN, cwd=work) as run:
        run.says("up")
        run.signal(signal.SIGUSR1)
        assert run.wait() == -signal.SIGUSR1
        assert len(run.processes()) == 2


@pytest.mark.torch
@pytest.mark.parametrize(
    "check",
    [t_ambiguous, t_words, t_variables, t_exit_codes, t_hangup, t_descriptors, t_run_id,
     t_agent_store, t_listens, t_relative, t_old_form, t_orphans],
    ids=lambda check: check.__name__[2:],
)  # fmt: skip
def test_what_torchrun_does(work: Path, check: Check) -> None:
    check(work)
