"""From settings to the `JobSpec`: values, defaults, which rendezvous is meant, notes, mistakes."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.options import OPTIONS
from phalanx.cli.parse import CommandLine, Setting, parse
from phalanx.cli.spec import Plan, build, shares
from phalanx.errors import ExitCode, PhalanxError, StartError, UsageError
from phalanx.job import CommandKind, ConsoleMode, JobSpec, StopSignalTo, StoreAddress


class FakeMachine:
    """A machine with 8 accelerators and 6 usable CPUs."""

    notes: ClassVar[list[str]] = ["a word about this machine"]

    def count_workers(self, word: str, *, one_device_each: bool = False) -> int:
        return {"cpu": 6, "gpu": 7 if one_device_each else 8, "xpu": 5, "auto": 4}[word]

    def usable_cpus(self) -> int:
        return 6

    def bind(self, mode: str, local_world_size: int) -> tuple[tuple[int, ...], ...]:
        assert mode == "node"
        return ((0, 1, 2, 3),) * local_world_size


MACHINE = FakeMachine()


def plan_of(*words: str, **environ: str) -> Plan:
    """The plan for a line; `s.py` is the script unless the words hold one after `--`."""
    line = parse(words if "--" in words else (*words, "s.py"), environ)
    return plan(line, environ)


def plan(line: CommandLine, environ: dict[str, str]) -> Plan:
    return build(
        line,
        environ,
        executable="/venv/bin/python",
        machine=lambda: MACHINE,
        fresh_id=lambda: "fresh",
    )


def spec_of(*words: str, **environ: str) -> JobSpec:
    return plan_of(*words, **environ).spec


def error_of(*words: str, **environ: str) -> PhalanxError:
    with pytest.raises(PhalanxError) as caught:
        plan_of(*words, **environ)
    return caught.value


def test_the_defaults_are_torchruns() -> None:
    assert plan_of() == Plan(
        JobSpec(
            command=spec_of().command,
            run_id="fresh",
            local_world_size=1,
            store=StoreAddress("localhost", None),
            store_in_worker=False,
            min_nodes=1,
            max_nodes=1,
            node_rank=0,
            role="default",
            max_restarts=0,
            log_dir=None,
            shutdown_timeout_s=None,
            stop_signal_to=StopSignalTo.LEADER,
            signals_to_handle=("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"),
            virtual_local_rank=False,
        ),
        notes=(),
    )


# Restarts


@pytest.mark.parametrize(
    ("text", "budget", "window_s"),
    [
        ("3", 3, None),
        ("0", 0, None),
        ("3/90s", 3, 90.0),
        ("3/10m", 3, 600.0),
        ("3/1h", 3, 3600.0),
        ("2/1d", 2, 86400.0),
        ("1/1s", 1, 1.0),
        ("0/1h", 0, 3600.0),
        (" 3 / 1h ", 3, 3600.0),
        ("3/3650d", 3, 3650 * 86400.0),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_max_restarts_is_a_total_or_for_a_window(
    text: str, budget: int, window_s: float | None, by_variable: bool
) -> None:
    spec = spec_of(PET_MAX_RESTARTS=text) if by_variable else spec_of(f"--max-restarts={text}")

    assert (spec.max_restarts, spec.restart_window_s) == (budget, window_s)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("/1h", "a whole number before the /"),
        ("x/1h", "a whole number before the /"),
        ("-1/1h", "a whole number before the /"),
        ("1.5/1h", "a whole number before the /"),
        ("9" * 5000 + "/1h", "a whole number before the /"),
        ("3/", "a whole number and a unit after the /"),
        ("3/h", "a whole number and a unit after the /"),
        ("3/90", "a whole number and a unit after the /"),
        ("3/1y", "a whole number and a unit after the /"),
        ("3/1H", "a whole number and a unit after the /"),
        ("3/1.5h", "a whole number and a unit after the /"),
        ("3/-1h", "a whole number and a unit after the /"),
        ("3/²s", "a whole number and a unit after the /"),
        ("3/1h/2", "a whole number and a unit after the /"),
        ("3/" + "9" * 5000 + "h", "a whole number and a unit after the /"),
        ("3/0s", "1 s or longer"),
        ("3/3651d", "at most 3650d"),
        ("three", "a whole number, or N/TIME"),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_window_that_is_none_is_said_to_be_wrong_and_how(
    text: str, wrong: str, by_variable: bool
) -> None:
    words, environ = [f"--max-restarts={text}"], {}
    if by_variable:
        words, environ = [], {"PET_MAX_RESTARTS": text}
    error = error_of(*words, **environ)

    source = "PET_MAX_RESTARTS" if by_variable else "--max-restarts"
    assert str(error).startswith(f"{source} is {text!r}, but must be ")
    assert wrong in str(error)
    assert error.hint
    assert error.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("word", "always"), [("failure", False), ("always", True)])
def test_what_is_restarted(word: str, always: bool) -> None:
    assert spec_of(f"--restart-on={word}").restart_on_always == always


def test_what_is_restarted_is_one_of_two_words() -> None:
    assert "failure or always" in str(error_of("--restart-on=never"))


@pytest.mark.parametrize(
    ("option", "field"),
    [("max-restart-delay", "max_restart_delay_s"), ("failure-grace", "failure_grace_s")],
)
def test_waits_are_seconds_with_or_without_a_fraction(option: str, field: str) -> None:
    for text, wanted in (("0", 0.0), ("7", 7.0), ("0.5", 0.5), ("1000000", 1e6)):
        assert getattr(spec_of(f"--{option}={text}"), field) == wanted
    for text in ("-1", "soon", "nan", ""):
        assert "a number of seconds, 0 or more" in str(error_of(f"--{option}={text}"))
    for text in ("inf", "1000001", "9" * 400):
        assert "at most 1000000 seconds" in str(error_of(f"--{option}={text}"))


# What is run


def test_a_script_is_run_by_the_interpreter_of_phalanx() -> None:
    command = spec_of("--", "train.py", "--lr", "1").command

    assert command.kind is CommandKind.SCRIPT
    assert (command.target, command.args) == ("train.py", ("--lr", "1"))
    assert command.python == "/venv/bin/python"


@pytest.mark.parametrize(("value", "python"), [("/other", "/other"), ("", "/venv/bin/python")])
def test_python_exec_names_the_workers_interpreter(value: str, python: str) -> None:
    assert spec_of(PYTHON_EXEC=value).command.python == python


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["-m"], CommandKind.MODULE),
        (["--no-python"], CommandKind.PROGRAM),
        (["--run-path"], CommandKind.RUN_PATH),
        (["--run-path", "--no-python"], CommandKind.RUN_PATH),
        (["--run-path", "-m"], CommandKind.RUN_PATH),
    ],
)
def test_kinds_of_command(words: list[str], kind: CommandKind) -> None:
    assert spec_of(*words).command.kind is kind


def test_module_and_no_python_exclude_each_other() -> None:
    assert str(error_of("-m", "--no-python")) == "--module and --no-python exclude each other"


@pytest.mark.parametrize("script", ["", "  "])
def test_nothing_to_run(script: str) -> None:
    error = error_of("--", script)

    assert (str(error), error.exit_code) == ("nothing to run", ExitCode.USAGE)


# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" 2 ", 2), ("+2", 2), ("1_0", 10), ("cpu", 6), ("gpu", 8), ("xpu", 5), ("auto", 4)],
)
def test_nproc_per_node(text: str, number: int) -> None:
    assert spec_of(f"--nproc-per-node={text}").local_world_size == number


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", "at least 1"),
        ("-1", "at least 1"),
        ("1.5", "a whole number, or cpu, gpu, xpu, auto"),
        ("abc", "a whole number, or cpu, gpu, xpu, auto"),
        ("CPU", "cpu, in this spelling"),
        ("gpus", "gpu, in this spelling"),
        ("cuda", "gpu, in this spelling"),
        ("", "a whole number, or cpu, gpu, xpu, auto"),
        ("1000000000", "at most 65536"),
        ("9" * 5000, "a whole number, or cpu, gpu, xpu, auto"),
    ],
)
def test_nproc_per_node_refused(text: str, wanted: str) -> None:
    error = error_of(f"--nproc-per-node={text}")

    assert str(error) == f"--nproc-per-node is {text!r}, but must be {wanted}"
    assert error.exit_code == ExitCode.USAGE


def test_a_message_names_the_variable_that_a_bad_value_came_from() -> None:
    error = error_of(PET_NPROC_PER_NODE="many")

    assert str(error).startswith("PET_NPROC_PER_NODE is 'many'")
    assert error.hint == "`phalanx --help` describes --nproc-per-node"
    assert "PET_MAX_RESTARTS is ''" in str(error_of(PET_MAX_RESTARTS=""))
    assert "--max_restarts is 'x'" in str(error_of("--max_restarts=x"))


@pytest.mark.parametrize(("text", "nodes"), [("1", (1, 1)), ("1:1", (1, 1)), (" 1 ", (1, 1))])
def test_nnodes(text: str, nodes: tuple[int, int]) -> None:
    spec = spec_of(f"--nnodes={text}")

    assert (spec.min_nodes, spec.max_nodes) == nodes


@pytest.mark.parametrize("text", ["", "x", "1:", ":1", "1:2:3", "0", "2:1", "-1", "1.0"])
def test_nnodes_refused(text: str) -> None:
    error = error_of(f"--nnodes={text}")

    assert str(error).startswith(f"--nnodes is {text!r}, but must be ")
    assert error.hint.startswith("for instance --nnodes=")
    assert error.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("words", [["--nnodes=2"], ["--nnodes=1:2"], ["--standalone", "--nn=2"]])
def test_several_nodes_are_not_yet_there(words: list[str]) -> None:
    error = error_of(*words)

    assert isinstance(error, StartError)
    assert "not yet on several nodes" in str(error)
    assert error.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_max_restarts_refused(text: str) -> None:
    assert "--max-restarts is " in str(error_of(f"--max-restarts={text}"))
    assert spec_of("--max-restarts=3").max_restarts == 3


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x", ""])
def test_monitor_interval_is_checked_though_it_has_no_effect(text: str) -> None:
    assert "a number of seconds above 0" in str(error_of(f"--monitor-interval={text}"))
    assert plan_of("--monitor-interval=1e-3").notes == ()


# Which rendezvous

NAMED = ("127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("words", "run_id", "host", "port"),
    [
        ([], "fresh", "localhost", None),
        (["--rdzv-id=mine"], "fresh", "localhost", None),
        (["--standalone"], "fresh", "localhost", None),
        (["--standalone", "--rdzv-backend=etcd", "--rdzv-id=x", "--rdzv-endpoint=h:1"],
         "fresh", "localhost", None),
        (["--standalone", "--master-port=1234"], "fresh", "localhost", None),
        (["--master-port=1234"], "none", "127.0.0.1", 1234),
        (["--master-port=0"], "none", "127.0.0.1", None),
        (["--master-port=1234", "--rdzv-id=mine"], "mine", "127.0.0.1", 1234),
        (["--master-port=1234", "--master-addr=host"], "none", "host", 1234),
        (["--master-port=1234", "--master-addr=[::1]"], "none", "::1", 1234),
        (["--master-addr=host"], "fresh", "localhost", None),
        (["--rdzv-endpoint=host:12"], "none", "host", 12),
        (["--rdzv-endpoint= host:12 "], "none", "host", 12),
        (["--rdzv-endpoint=[::1]:12", "--master-port=3"], "none", "::1", 12),
        (["--rdzv-endpoint=host:0"], "none", "host", None),
        (["--rdzv-backend=c10d"], "none", "localhost", None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=host"], "none", "localhost", None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=host:12"], "none", "localhost", None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=[::1]"], "none", "localhost", None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--local-addr=10.0.0.7"],
         "none", "10.0.0.7", None),
        (["--rdzv-backend=c10d", "--rdzv-id=a/b"], "a/b", "localhost", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_which_rendezvous_is_meant(
    words: list[str], run_id: str, host: str, port: int | None
) -> None:
    spec = spec_of(*words)

    assert (spec.run_id, spec.store.host, spec.store.port) == (run_id, host, port)
    assert spec.store.loopback == (host in ("localhost", "127.0.0.1", "::1"))


def test_an_empty_run_id_is_made_up_and_said() -> None:
    plan = plan_of("--rdzv-backend=c10d", "--rdzv-id=")

    assert plan.spec.run_id == "fresh"
    assert plan.notes == ("--rdzv-id is empty: the run id is fresh",)


@pytest.mark.parametrize(
    "text",
    ["host:", ":12", "[::1", "[]:1", "[::1]x", "ho st:1", "host:65536", "host:-1", "host:x",
     "host:123456", "h:" + "1" * 5000, "höst:1", "host:\uff11", "a/b:1"],
)  # fmt: skip
def test_what_is_no_endpoint(text: str) -> None:
    error = error_of(f"--rdzv-endpoint={text}")

    assert str(error) == f"{text!r} is not an endpoint"
    assert error.exit_code == ExitCode.USAGE


def test_a_static_endpoint_needs_a_port() -> None:
    error = error_of("--rdzv-endpoint=host")

    assert "HOST:PORT in a static job" in str(error)
    assert error.hint == "for instance --rdzv-endpoint=host:29500"


@pytest.mark.parametrize("text", ["ho st", "h/x", "höst"])
def test_a_master_address_that_is_none(text: str) -> None:
    assert "a host name or an address" in str(error_of("--master-port=1", f"--master-addr={text}"))


@pytest.mark.parametrize("text", ["65536", "-1", "x", ""])
def test_a_master_port_that_is_none(text: str) -> None:
    assert f"--master-port is {text!r}" in str(error_of(f"--master-port={text}"))


def test_node_rank() -> None:
    assert "less than the 1 of --nnodes" in str(error_of("--node-rank=1", "--master-port=1"))
    assert plan_of("--node-rank=1", "--rdzv-backend=c10d").notes == (
        "--node-rank has no effect with --rdzv-backend=c10d",
    )


def test_back_ends() -> None:
    assert "one of static, c10d, etcd, etcd-v2" in str(error_of("--rdzv-backend=zk"))
    for name in ("etcd", "etcd-v2"):
        error = error_of(f"--rdzv-backend={name}")
        assert "not yet" in str(error)
        assert error.exit_code == ExitCode.UNAVAILABLE


def test_rdzv_conf_ignores_unknown_keys_with_a_line() -> None:
    assert plan_of("--rdzv-conf= join_timeout = 5 ,is_host=1").notes == ()
    assert plan_of("--rdzv-conf='a=1,timeout=3'").notes == ("--rdzv-conf: ignored, not known: 'a",)


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,", "a=1,,b=2"])
def test_rdzv_conf_refused(text: str) -> None:
    assert "pairs KEY=VALUE with commas between" in str(error_of(f"--rdzv-conf={text}"))


# Stopping


@pytest.mark.parametrize(
    ("words", "environ", "seconds"),
    [
        ([], {}, None),
        (["--shutdown-timeout=0"], {}, 0.0),
        (["--shutdown-timeout=5"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 5.0),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7.5"}, 7.5),
        ([], {"PET_SHUTDOWN_TIMEOUT": "8", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 8.0),
    ],
)
def test_shutdown_timeout(words: list[str], environ: dict[str, str], seconds: float | None) -> None:
    assert spec_of(*words, **environ).shutdown_timeout_s == seconds


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_shutdown_timeout_refused(text: str) -> None:
    assert f"--shutdown-timeout is {text!r}" in str(error_of(f"--shutdown-timeout={text}"))


@pytest.mark.parametrize("text", ["-5", "soon", "nan", ""])
def test_shutdown_timeout_of_torchs_variable_refused(text: str) -> None:
    error = error_of(TORCH_ELASTIC_SHUTDOWN_TIMEOUT=text)

    assert str(error).startswith(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is {text!r}")


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["--shutdown-timeout=1" + "0" * 400], {}),
        (["--shutdown-timeout=1000001"], {}),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "inf"}),
    ],
    ids=["400 digits", "1000001", "inf"],
)
def test_a_shutdown_timeout_beyond_every_timer_is_cut_and_said(
    words: list[str], environ: dict[str, str]
) -> None:
    plan = plan_of(*words, **environ)

    assert plan.spec.shutdown_timeout_s == 1_000_000
    assert "is cut to 1000000 s" in plan.notes[0]


def test_signals_to_handle() -> None:
    plan = plan_of("--signals-to-handle= SIGUSR1 ,SIGTERM,BOGUS,")

    assert plan.spec.signals_to_handle == ("SIGUSR1", "SIGTERM")
    assert plan.notes == ("--signals-to-handle: no signal is called BOGUS",)
    (note,) = plan_of("--signals-to-handle=SIGINT,SIGTRM").notes
    assert note == "--signals-to-handle: no signal is called SIGTRM; did you mean SIGTERM?"
    assert "names of signals" in str(error_of("--signals-to-handle=SIGTRM"))
    assert spec_of("--signals-to-handle=").signals_to_handle == ()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP", "SIGCHLD"])
def test_signals_that_cannot_be_handled_are_refused(name: str) -> None:
    assert f"without {name}" in str(error_of(f"--signals-to-handle=SIGTERM,{name}")).replace(
        "SIGKILL and SIGSTOP", name
    )


@pytest.mark.parametrize(
    ("words", "who"),
    [
        ([], StopSignalTo.LEADER),
        (["-m"], StopSignalTo.LEADER),
        (["--no-python"], StopSignalTo.GROUP),
        (["--stop-signal-to=group"], StopSignalTo.GROUP),
        (["--no-python", "--stop-signal-to=leader"], StopSignalTo.LEADER),
    ],
)
def test_who_gets_the_stop_signal(words: list[str], who: StopSignalTo) -> None:
    assert spec_of(*words).stop_signal_to is who


@pytest.mark.parametrize(
    ("words", "in_worker"), [([], False), (["--store=agent"], False), (["--store", "worker"], True)]
)
def test_who_serves_the_store(words: list[str], in_worker: bool) -> None:
    assert spec_of(*words).store_in_worker is in_worker


@pytest.mark.parametrize("who", ["", "rank0", "Worker"])
def test_who_serves_the_store_refused(who: str) -> None:
    error = error_of(f"--store={who}")

    assert str(error) == f"--store is {who!r}, but must be agent or worker"
    assert error.exit_code == 64


def test_who_serves_the_store_is_not_read_from_the_environment() -> None:
    assert not spec_of(PET_STORE="worker").store_in_worker


def test_who_gets_the_stop_signal_refused() -> None:
    assert "leader or group" in str(error_of("--stop-signal-to=all"))


# Output, and what is accepted for torchrun's sake


@pytest.mark.parametrize("option", ["--redirects", "--tee"])
@pytest.mark.parametrize("text", ["4", "", "0:1,", "0:4", "x:1", "33", "1,2", "0:"])
def test_stream_selections_refused(option: str, text: str) -> None:
    assert f"{option} is {text!r}" in str(error_of(f"{option}={text}"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3", ((None, 3),)),
        ("0", ()),
        ("0:1", ((0, 1),)),
        ("0:1,1:2", ((0, 1), (1, 2))),
        ("10:3,2:0", ((10, 3),)),
    ],
)
def test_stream_selections(text: str, wanted: tuple[tuple[int | None, int], ...]) -> None:
    assert spec_of(f"--redirects={text}").console.redirects == wanted
    assert spec_of(f"--tee={text}").console.tee == wanted
    assert spec_of(PET_TEE=text).console.tee == wanted


def test_files_are_not_asked_for_where_none_are_written() -> None:
    plan = plan_of("--log-dir=/dev/null", "--tee=3", "-r1")

    assert plan.notes == (
        "-r has no effect with --log-dir /dev/null",
        "--tee has no effect with --log-dir /dev/null",
    )


def test_rank_filters() -> None:
    console = spec_of("--local-ranks-filter=0, 2", "--ranks-filter=5").console

    assert (console.local_ranks, console.ranks) == ((0, 2), (5,))
    assert spec_of().console.local_ranks is None
    assert "local ranks with commas" in str(error_of("--local-ranks-filter=0,x"))
    assert "must be ranks with commas" in str(error_of("--ranks-filter=-1"))


def test_line_filters() -> None:
    console = spec_of("--tee=3", "--duplicate-stdout-filters=a,b c,,d,").console

    assert console.stdout_filters == ("a", "b c,d")
    assert console.stderr_filters == ()
    assert plan_of("--duplicate-stderr-filters=a").notes == (
        "--duplicate-stderr-filters has no effect without --tee",
    )


def test_console_modes() -> None:
    assert spec_of().console.mode is ConsoleMode.AUTO
    assert spec_of("--console=fold").console.mode is ConsoleMode.FOLD
    assert "one of auto, raw, prefix, fold" in str(error_of("--console=colour"))


def test_the_template_of_teed_lines_is_torchruns_variable() -> None:
    assert spec_of().console.template == "[${role_name}${local_rank}]:"
    named = spec_of(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="${rank}> ")
    assert named.console.template == "${rank}> "


@pytest.mark.parametrize(
    ("text", "octets"),
    [("4096", 4096), ("8k", 8192), ("1M", 1 << 20), ("2GiB", 2 << 30), ("1TB", 1 << 40)],
)
def test_sizes_of_log_files(text: str, octets: int) -> None:
    assert spec_of(f"--log-max-size={text}").console.log_max_size == octets


@pytest.mark.parametrize("text", ["", "0", "4095", "M", "1.5M", "-1", "1X", "9" * 16])
def test_sizes_of_log_files_refused(text: str) -> None:
    assert f"--log-max-size is {text!r}" in str(error_of(f"--log-max-size={text}"))


def test_a_rank_with_the_terminal() -> None:
    assert spec_of("--nproc-per-node=4", "--tty=3").console.tty_rank == 3
    assert "--tty is '4', but must be a rank from 0 to 3" in str(
        error_of("--nproc-per-node=4", "--tty=4")
    )
    assert "--tty is 'x'" in str(error_of("--tty=x"))
    assert "exclude each other" in str(error_of("--tty=0", "--console=fold"))


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("start-method", "fork", "bogus"),
        ("event-log-handler", "null", "nosuch"),
        ("logs-specs", "default", "mine"),
    ],
)
def test_options_without_effect_are_checked(option: str, good: str, bad: str) -> None:
    assert plan_of(f"--{option}={good}").notes == ()
    assert f"--{option} is {bad!r}" in str(error_of(f"--{option}={bad}"))


def test_choices_hold_for_variables_too() -> None:
    assert "PET_START_METHOD is 'bogus'" in str(error_of(PET_START_METHOD="bogus"))


def test_what_has_no_effect_is_said() -> None:
    assert plan_of("--event-log-handler=console").notes == (
        "--event-log-handler has no effect: no events are written",
    )
    assert plan_of("--start-method=fork").notes == ()
    assert plan_of("--run-path", "--start-method=fork").notes == (
        "--start-method has no effect: workers are always started afresh",
    )


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "--store=worker"),
        ("TORCHELASTIC_ENABLE_FILE_TIMER", "no timer file is served"),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "no health check is served"),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "are not looked for"),
    ],
)
def test_variables_that_switch_on_what_is_not_here_are_named(variable: str, what: str) -> None:
    (note,) = plan_of(**{variable: "1"}).notes

    assert note.startswith(f"{variable} has no effect: ")
    assert what in note
    assert plan_of(**{variable: "0"}).notes == plan_of(**{variable: ""}).notes == ()


def test_a_slip_in_the_name_of_a_variable_is_said() -> None:
    (note,) = plan_of(PET_NPROC_PER_NOD="2", PET_NAME="Rex", PETER="1").notes

    assert note == "PET_NPROC_PER_NOD has no effect; did you mean PET_NPROC_PER_NODE?"


def test_what_has_no_effect_beside_another_option_is_said() -> None:
    assert plan_of("--node-rank=1").notes == (
        "--node-rank has no effect: without --nnodes this is a job on one node",
    )
    assert plan_of("--run-path", "--module").notes == (
        "--module and --no-python have no effect with --run-path",
    )


# CPUs, devices, threads


def test_the_machine_is_asked_only_where_it_has_to_be() -> None:
    def nobody() -> FakeMachine:
        raise AssertionError("the machine was looked at")

    for words in ([], ["--nproc-per-node=3"], ["--omp=2"], ["--virtual-local-rank"]):
        build(
            parse([*words, "s.py"], {}),
            {},
            executable="python",
            machine=nobody,
            fresh_id=str,
        )
    with pytest.raises(UsageError):
        build(
            parse(["--nproc-per-node=gpu", "--max-restarts=x", "s.py"], {}),
            {},
            executable="python",
            machine=nobody,
            fresh_id=str,
        )


def test_what_the_machine_has_to_say_is_noted() -> None:
    assert plan_of("--nproc-per-node=cpu").notes == ("a word about this machine",)


def test_one_device_each_is_what_virtual_local_rank_asks_for() -> None:
    assert spec_of("--nproc-per-node=gpu").local_world_size == 8
    assert spec_of("--nproc-per-node=gpu", "--virtual-local-rank").local_world_size == 7


def test_numa_binding_gives_each_worker_its_cpus() -> None:
    spec = spec_of("--numa-binding=node", "--nproc-per-node=2")

    assert spec.worker_cpus == ((0, 1, 2, 3), (0, 1, 2, 3))
    assert spec_of("--nproc-per-node=2").worker_cpus == ()
    assert "--numa-binding is 'x'" in str(error_of("--numa-binding=x"))


def test_omp_is_a_number_or_a_share_of_the_usable_cpus() -> None:
    assert spec_of("--nproc-per-node=2").omp_threads == ()
    assert spec_of("--omp=5", "--nproc-per-node=2").omp_threads == (5, 5)
    assert spec_of("--omp=auto", "--nproc-per-node=2").omp_threads == (3, 3)
    assert spec_of("--omp=auto", "--nproc-per-node=cpu").omp_threads == (1,) * 6
    assert spec_of("--omp=auto", "--nproc-per-node=7").omp_threads == (1,) * 7
    for bad in ("0", "-1", "x", "1.5", ""):
        assert f"--omp is {bad!r}" in str(error_of(f"--omp={bad}"))


def test_workers_on_the_same_cpus_share_them() -> None:
    assert shares(((0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7)), 3, usable=8) == (2, 2, 4)
    assert shares(((0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7)), 3, usable=4) == (1, 1, 2)
    assert shares(((0,), (0,)), 2, usable=1) == (1, 1)


@given(
    st.lists(st.sets(st.integers(0, 31), min_size=1), min_size=1, max_size=9), st.integers(1, 40)
)
def test_shares_are_at_least_one_and_at_most_the_workers_own_cpus(
    bound: list[set[int]], usable: int
) -> None:
    given_out = shares([sorted(cpus) for cpus in bound], len(bound), usable)

    assert all(1 <= n <= len(cpus) for n, cpus in zip(given_out, bound, strict=True))
    assert sum(n for n in given_out if n > 1) <= min(usable, len(set().union(*bound)))


# The old form


def old_form(*words: str) -> JobSpec:
    return plan(parse([*words, "--", "s.py", "a"], {}, old_form=True), {}).spec


def test_the_old_form_gives_the_local_rank_as_the_first_argument() -> None:
    assert old_form().command.args == ("--local-rank=${local_rank}", "a")
    assert old_form("-m").command.args == ("--local-rank=${local_rank}", "a")
    assert old_form("--use-env").command.args == ("a",)
    assert old_form("--use_env", "--no-python").command.args == ("a",)
    with pytest.raises(UsageError, match="--no-python needs --use-env"):
        old_form("--no-python")


def test_an_empty_role_is_the_default_one() -> None:
    assert spec_of("--role=").role == "default"
    assert spec_of("--role=trainer").role == "trainer"


# Anything at all


@given(
    st.dictionaries(
        st.sampled_from([option.name for option in OPTIONS if option.metavar]),
        st.one_of(
            st.text(max_size=6),
            st.text(alphabet="0123456789:,.-=x[] ", max_size=8),
            st.integers().map(str),
            st.floats().map(str),
        ),
        max_size=4,
    )
)
def test_build_raises_nothing_but_errors_that_are_explained(values: dict[str, str]) -> None:
    settings = {option.name: Setting(option.default, "") for option in OPTIONS
                if option.default is not None}  # fmt: skip
    settings |= {name: Setting(text, f"--{name}") for name, text in values.items()}
    try:
        result = plan(CommandLine(settings, "s.py", ()), {})
    except (UsageError, StartError) as error:
        problem = error
    else:
        assert 1 <= result.spec.local_world_size <= 65536
        assert all("\n" not in note for note in result.notes) or "\n" in str(values)
        return
    assert str(problem)
    assert problem.hint
