"""PURE: from settings to the frozen `JobSpec`, with every check that needs no look at the machine.

A mistake is a `UsageError` that names the option or variable as the user wrote it. What is legal
but will not have its effect (yet) gives a note: one line each, printed once, before the start.
"""

from __future__ import annotations

from phalanx.cli.parse import CommandLine, Setting
from phalanx.errors import ExitCode, StartError, UsageError
from phalanx.job import Command, CommandKind, JobSpec, StopSignalTo, StoreAddress
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Plan", "build"]

_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
#: Keys of --rdzv-conf that torchrun's back ends know (torch 2.13).
_CONF_KEYS = frozenset(
    "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval "
    "keep_alive_max_attempt read_timeout is_host store_type timeout rank protocol ssl_cert "
    "ssl_cert_key ca_cert cert key cacert etcd_prefix".split()
)
_SIGNALS = frozenset(
    "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGPIPE SIGPROF "
    "SIGPWR SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 "
    "SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ".split()
)
_LOOPBACK = ("localhost", "::1", "ip6-localhost")
#: More workers on one node than any machine runs: a slip of the keyboard, found before it is tried.
_MOST_WORKERS = 65536
#: Eleven days: as good as for ever, and a number that every timer takes.
_LONGEST_TIMEOUT_S = 1_000_000
_EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")


class Plan(Record):
    """What will be run, and what to say before it is."""

    spec: JobSpec
    notes: tuple[str, ...]


class _Rendezvous(Record):
    """Run id and store address: what is left of a rendezvous when there is one node."""

    run_id: str
    store: StoreAddress


def build(
    line: CommandLine,
    environ: Mapping[str, str],
    *,
    executable: str,
    count_workers: Callable[[str], int],
    fresh_id: Callable[[], str],
) -> Plan:
    """The job that `line` describes.

    `executable` is the interpreter that runs phalanx. `count_workers("cpu" | "gpu" | "xpu" |
    "auto")` looks at the machine, and is called only for those words. `fresh_id` makes up a run
    id. Raises UsageError, and StartError for what phalanx cannot do yet.
    """
    notes: list[str] = []
    command = _command(line, environ, executable)
    local_world_size = _local_world_size(line, count_workers)
    min_nodes, max_nodes = _nodes(line)
    _check_conf(line, notes)
    rendezvous = _rendezvous(line, min_nodes, max_nodes, fresh_id, notes)
    _check_output(line, notes)
    _check_accepted(line, notes)
    spec = JobSpec(
        command=command,
        run_id=rendezvous.run_id,
        local_world_size=local_world_size,
        store=rendezvous.store,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        role=line.text("role") or "default",
        max_restarts=_whole_number(line, "max-restarts", at_least=0),
        log_dir=line.text("log-dir"),
        shutdown_timeout_s=_shutdown_timeout(line, environ, notes),
        stop_signal_to=_stop_signal_to(line, command),
        signals_to_handle=_signals(line, notes),
        virtual_local_rank=line.flag("virtual-local-rank"),
    )
    return Plan(spec, tuple(notes))


def _command(line: CommandLine, environ: Mapping[str, str], executable: str) -> Command:
    if line.script is None or not line.script.strip():
        if line.last is not None:
            raise UsageError(
                f"nothing to run: {line.last.text} is the value of {line.last.source}",
                f"write {line.last.source}=VALUE, then what to run",
            )
        raise UsageError("nothing to run", "phalanx [options] train.py [arguments of train.py]")
    python = environ.get("PYTHON_EXEC") or executable
    if line.flag("run-path"):
        kind = CommandKind.RUN_PATH
    elif line.flag("no-python"):
        kind = CommandKind.PROGRAM
        if line.flag("module"):
            raise UsageError("--module and --no-python exclude each other", "give one of them")
    elif line.flag("module"):
        kind = CommandKind.MODULE
    else:
        kind = CommandKind.SCRIPT
    return Command(kind, line.script, line.args, python)


def _local_world_size(line: CommandLine, count_workers: Callable[[str], int]) -> int:
    if line.text("nproc-per-node") in ("cpu", "gpu", "xpu", "auto"):
        return count_workers(line.text("nproc-per-node") or "")
    return _whole_number(
        line,
        "nproc-per-node",
        at_least=1,
        at_most=_MOST_WORKERS,
        instead="cpu, gpu, xpu or auto",
    )


def _nodes(line: CommandLine) -> tuple[int, int]:
    setting = line.settings["nnodes"]
    low, colon, high = setting.text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError:
        raise _bad(
            setting, "nnodes", "a number, or MIN:MAX", "--nnodes=2 or --nnodes=1:4"
        ) from None
    if not 0 < least <= most:
        raise _bad(setting, "nnodes", "at least 1, and MIN at most MAX", "--nnodes=1:4")
    return least, most


def _rendezvous(
    line: CommandLine,
    min_nodes: int,
    max_nodes: int,
    fresh_id: Callable[[], str],
    notes: list[str],
) -> _Rendezvous:
    """Torchrun's table of which rendezvous is meant (its reference, section 3.1), for one node."""
    backend = line.text("rdzv-backend")
    endpoint = (line.text("rdzv-endpoint") or "").strip()
    port = _master_port(line)
    if backend not in _BACKENDS:
        raise _bad(line.settings["rdzv-backend"], "rdzv-backend", "one of " + ", ".join(_BACKENDS))
    implied = backend == "static" and not endpoint and port is None and max_nodes == 1
    standalone = line.flag("standalone") or implied
    if max_nodes > 1:
        raise StartError(
            f"{_source(line.settings['nnodes'], 'nnodes')}={line.text('nnodes')}: "
            "not yet on several nodes",
            "this version runs jobs on one node: leave --nnodes out",
            exit_code=ExitCode.UNAVAILABLE,
        )
    if line.flag("standalone") and port is not None:
        notes.append("--master-port has no effect with --standalone: a free port is chosen")
    if standalone:
        return _Rendezvous(fresh_id(), StoreAddress("localhost", None))
    if backend not in ("static", "c10d"):
        raise StartError(
            f"--rdzv-backend={backend}: not yet (it serves jobs on several nodes)",
            "leave it out, or use c10d",
            exit_code=ExitCode.UNAVAILABLE,
        )
    node_rank = _whole_number(line, "node-rank", at_least=0)
    run_id = line.text("rdzv-id") or ""
    if not run_id:
        run_id = fresh_id()
        notes.append(f"--rdzv-id is empty: the run id is {run_id}")
    if backend == "static":
        if node_rank >= max_nodes:
            raise _bad(
                line.settings["node-rank"], "node-rank", f"less than the {max_nodes} of --nnodes"
            )
        return _Rendezvous(run_id, _static_address(line, endpoint, port))
    if node_rank != 0:
        notes.append("--node-rank has no effect with --rdzv-backend=c10d")
    if endpoint:
        _endpoint(endpoint)  # checked only: with one node nobody has to be met there
    host = line.text("local-addr") or "localhost"
    return _Rendezvous(run_id, _store_address(host, None))


def _static_address(line: CommandLine, endpoint: str, port: int | None) -> StoreAddress:
    if endpoint:
        host, number = _endpoint(endpoint)
        if number is None:
            raise _bad(
                line.settings["rdzv-endpoint"],
                "rdzv-endpoint",
                "HOST:PORT in a static job",
                f"--rdzv-endpoint={endpoint}:29500",
            )
        return _store_address(host, number or None)
    host = (line.text("master-addr") or "127.0.0.1").strip().strip("[]")
    if not _is_host(host):
        raise _bad(line.settings["master-addr"], "master-addr", "a host name or an address")
    return _store_address(host, 29500 if port is None else port or None)


def _store_address(host: str, port: int | None) -> StoreAddress:
    return StoreAddress(host, port, loopback=host in _LOOPBACK or host.startswith("127."))


def _master_port(line: CommandLine) -> int | None:
    """The port named by --master-port; 0 means any free one; None: not given."""
    if not line.given("master-port"):
        return None
    return _whole_number(line, "master-port", at_least=0, at_most=65535)


def _endpoint(text: str) -> tuple[str, int | None]:
    """`host[:port]`, `[v6]` or `[v6]:port`, else split at the last colon. Raises UsageError."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port_text = rest.removeprefix(":")
        well_formed = bool(bracket and host) and (not rest or rest.startswith(":"))
    else:
        host, colon, port_text = text.rpartition(":")
        if not colon:
            host, port_text = text, ""
        well_formed = bool(host) and (not colon or bool(port_text))
    if port_text and not _is_port(port_text):
        well_formed = False
    if not (well_formed and _is_host(host)):
        raise UsageError(
            f"{text!r} is not an endpoint",
            "write HOST, HOST:PORT or [IPV6]:PORT, with a port below 65536",
        )
    return host, int(port_text) if port_text else None


def _is_host(text: str) -> bool:
    return bool(text) and all(c.isascii() and (c.isalnum() or c in "_.:-") for c in text)


def _is_port(text: str) -> bool:
    return len(text) <= 5 and text.isascii() and text.isdigit() and int(text) < 65536


def _check_conf(line: CommandLine, notes: list[str]) -> None:
    text = (line.text("rdzv-conf") or "").strip()
    unknown = []
    for pair in text.split(",") if text else ():
        key, equals, value = pair.strip().partition("=")
        if not equals or not key.strip() or not value.strip():
            raise _bad(
                line.settings["rdzv-conf"],
                "rdzv-conf",
                "pairs KEY=VALUE with commas between",
                "--rdzv-conf=join_timeout=600,last_call_timeout=30",
            )
        if key.strip() not in _CONF_KEYS:
            unknown.append(key.strip())
    if unknown:
        notes.append("--rdzv-conf: ignored, not known: " + ", ".join(unknown))


def _check_output(line: CommandLine, notes: list[str]) -> None:
    for name in ("redirects", "tee"):
        setting = line.settings[name]
        if _streams(setting, name):
            notes.append(f"{_source(setting, name)}: not yet, output goes to the console")
    for name in ("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"):
        if line.text(name):
            notes.append(f"{_source(line.settings[name], name)}: not yet, all output is shown")
    ranks = line.settings["local-ranks-filter"]
    if ranks.text and not all(_is_rank(rank) for rank in ranks.text.split(",")):
        wanted = "local ranks with commas between"
        raise _bad(ranks, "local-ranks-filter", wanted, "--local-ranks-filter=0,2")


def _is_rank(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit()


def _streams(setting: Setting, name: str) -> bool:
    """Does `0..3` or `RANK:0..3,...` ask for anything? Raises UsageError."""
    wanted = False
    for part in setting.text.split(","):
        rank, colon, digit = part.rpartition(":")
        digit_fine = digit in ("0", "1", "2", "3")
        rank_fine = _is_rank(rank) if colon else setting.text == digit
        if not (digit_fine and rank_fine):
            raise _bad(
                setting,
                name,
                "0, 1, 2 or 3 for all ranks, or RANK:N with commas between",
                f"--{name}=3 or --{name}=0:3,1:1",
            )
        wanted = wanted or digit != "0"
    return wanted


def _check_accepted(line: CommandLine, notes: list[str]) -> None:
    interval = line.settings["monitor-interval"]
    if _number(interval) is None or not (_number(interval) or 0) > 0:
        raise _bad(interval, "monitor-interval", "a number of seconds above 0")
    for name, choices in (
        ("start-method", ("spawn", "fork", "forkserver")),
        ("numa-binding", ("node", "socket", "exclusive", "core-complex")),
    ):
        setting = line.settings.get(name)
        if setting is not None and setting.text not in choices:
            raise _bad(setting, name, "one of " + ", ".join(choices))
    events = line.settings["event-log-handler"]
    if events.text not in _EVENT_LOG_HANDLERS:
        raise _bad(events, "event-log-handler", "one of " + ", ".join(_EVENT_LOG_HANDLERS))
    if events.text != "null":
        source = _source(events, "event-log-handler")
        notes.append(f"{source}: not yet, no events are written")
    if line.text("numa-binding"):
        notes.append("--numa-binding: not yet, workers are not bound to CPUs")
    if line.text("logs-specs") not in (None, "default"):
        raise _bad(
            line.settings["logs-specs"],
            "logs-specs",
            "`default`; plug-ins of torch's Python API cannot be loaded without torch",
            "leave it out",
        )


def _signals(line: CommandLine, notes: list[str]) -> tuple[str, ...]:
    setting = line.settings["signals-to-handle"]
    known = []
    for name in (part.strip() for part in setting.text.split(",")):
        if name in ("SIGKILL", "SIGSTOP"):
            raise _bad(setting, "signals-to-handle", "without SIGKILL and SIGSTOP: no program "
                       "can handle those", "leave them out")  # fmt: skip
        if name == "SIGCHLD":
            raise _bad(setting, "signals-to-handle", "without SIGCHLD: phalanx is told by it that "
                       "a process has ended", "leave it out")  # fmt: skip
        if name in _SIGNALS:
            known.append(name)
        elif name:
            notes.append(f"{_source(setting, 'signals-to-handle')}: no signal is called {name}")
    return tuple(known)


def _shutdown_timeout(
    line: CommandLine, environ: Mapping[str, str], notes: list[str]
) -> float | None:
    if line.given("shutdown-timeout"):
        source = _source(line.settings["shutdown-timeout"], "shutdown-timeout")
        seconds: float | None = _whole_number(line, "shutdown-timeout", at_least=0)
    else:
        source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        seconds = _seconds_of_variable(environ)
    if seconds is not None and seconds > _LONGEST_TIMEOUT_S:
        notes.append(f"{source} is cut to {_LONGEST_TIMEOUT_S} s, which is eleven days")
        return float(_LONGEST_TIMEOUT_S)
    return None if seconds is None else float(seconds)


def _seconds_of_variable(environ: Mapping[str, str]) -> float | None:
    text = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    if text is None:
        return None
    seconds = _number(Setting(text, ""))
    if seconds is None or not seconds >= 0:
        raise UsageError(
            f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is {text!r}, which is no number of seconds",
            "set it to a number, 0 or more, or unset it",
        )
    return seconds


def _stop_signal_to(line: CommandLine, command: Command) -> StopSignalTo:
    setting = line.settings.get("stop-signal-to")
    if setting is None:
        program = command.kind is CommandKind.PROGRAM
        return StopSignalTo.GROUP if program else StopSignalTo.LEADER
    if setting.text not in ("leader", "group"):
        raise _bad(setting, "stop-signal-to", "leader or group")
    return StopSignalTo(setting.text)


def _whole_number(
    line: CommandLine, name: str, *, at_least: int, at_most: int | None = None, instead: str = ""
) -> int:
    setting = line.settings[name]
    try:
        number = int(setting.text)
    except ValueError:
        kind = "a whole number" + (f", {instead}" if instead else "")
        raise _bad(setting, name, kind) from None
    if number < at_least:
        raise _bad(setting, name, f"at least {at_least}")
    if at_most is not None and number > at_most:
        raise _bad(setting, name, f"at most {at_most}")
    return number


def _number(setting: Setting) -> float | None:
    try:
        return float(setting.text)
    except ValueError:
        return None


def _bad(setting: Setting, name: str, wanted: str, example: str = "") -> UsageError:
    source = _source(setting, name)
    hint = f"for instance {example}" if example.startswith("--") else example
    return UsageError(
        f"{source} is {setting.text!r}, but must be {wanted}",
        hint or f"`phalanx --help` describes --{name}",
    )


def _source(setting: Setting, name: str) -> str:
    return setting.source or f"--{name}"
