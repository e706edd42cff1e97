"""PURE: from settings to the frozen `JobSpec`, with every check that needs no look at the machine.

A mistake is a `UsageError` that names the option or variable as the user wrote it. What is legal
but will not have its effect (yet) gives a note: one line each, printed once, before the start.
"""

from __future__ import annotations

from phalanx.cli.console import check_ranks, console
from phalanx.cli.options import OPTIONS
from phalanx.cli.parse import CommandLine, Setting
from phalanx.cli.rendezvous import check_conf, rendezvous
from phalanx.cli.restarts import restart_rules
from phalanx.cli.values import bad, choice, named, number, whole_number
from phalanx.errors import UsageError
from phalanx.job import MOST_WORKERS, Command, CommandKind, JobSpec, StopSignalTo
from phalanx.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    class Machine(Protocol):
        """What may be asked about this machine; `devices.machine` has it."""

        notes: list[str]

        def count_workers(self, word: str, *, one_device_each: bool = False) -> int:
            """How many "cpu", "gpu", "xpu" or "auto" mean. Raises StartError."""

        def usable_cpus(self) -> int:
            """CPUs by affinity and quota."""

        def bind(self, mode: str, local_world_size: int) -> tuple[tuple[int, ...], ...]:
            """CPUs of each local rank, by --numa-binding. Raises StartError."""


__all__ = ["Plan", "build", "shares"]

_SIGNALS = frozenset(
    "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGPIPE SIGPROF "
    "SIGPWR SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 "
    "SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ".split()
)
_MOST_THREADS = 65536
#: Eleven days: as good as for ever, and a number that every timer takes.
_LONGEST_TIMEOUT_S = 1_000_000
#: What --nproc-per-node may be instead of a number.
_MACHINE_TELLS = ("cpu", "gpu", "xpu", "auto")
#: Variables of torchrun's agent that switch on what is not here, and what that is.
_NOT_HERE = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "--store=worker has rank 0 serve the store",
    "TORCHELASTIC_ENABLE_FILE_TIMER": "no timer file is served, workers that expect one will fail",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "no health check is served",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "workers stuck in the kernel are not looked for",
}
_EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")


class Plan(Record):
    """What will be run, and what to say before it is."""

    spec: JobSpec
    notes: tuple[str, ...]


def build(
    line: CommandLine,
    environ: Mapping[str, str],
    *,
    executable: str,
    machine: Callable[[], Machine],
    fresh_id: Callable[[], str],
) -> Plan:
    """The job that `line` describes.

    `executable` is the interpreter that runs phalanx. `machine()` is called only where the answer
    depends on this machine, and only when all else is known to be right: the question may take
    seconds. `fresh_id` makes up a run id. Raises UsageError, and StartError for what phalanx
    cannot do yet or this machine has not got.
    """
    notes: list[str] = []
    command = _command(line, environ, executable)
    local_world_size = _local_world_size(line)
    min_nodes, max_nodes = _nodes(line)
    check_conf(line, notes)
    where = rendezvous(line, min_nodes, max_nodes, fresh_id, notes)
    _check_accepted(line, environ, notes)
    rules = restart_rules(line)
    spec = JobSpec(
        command=command,
        run_id=where.run_id,
        local_world_size=local_world_size or 1,
        store=where.store,
        store_in_worker=choice(line, "store") == "worker",
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        role=line.text("role") or "default",
        max_restarts=rules.max_restarts,
        restart_window_s=rules.restart_window_s,
        restart_on_always=rules.restart_on_always,
        max_restart_delay_s=rules.max_restart_delay_s,
        failure_grace_s=rules.failure_grace_s,
        log_dir=line.text("log-dir"),
        shutdown_timeout_s=_shutdown_timeout(line, environ, notes),
        console=console(line, environ, notes),
        stop_signal_to=_stop_signal_to(line, command),
        signals_to_handle=_signals(line, notes),
        virtual_local_rank=line.flag("virtual-local-rank"),
        omp_threads=_omp_threads(line, local_world_size or 1),
    )
    if local_world_size is None or line.given("numa-binding") or line.text("omp") == "auto":
        spec = _on_this_machine(line, spec, machine())
        notes += machine().notes
    check_ranks(line, spec, notes)
    return Plan(spec, tuple(notes))


def _on_this_machine(line: CommandLine, spec: JobSpec, machine: Machine) -> JobSpec:
    """Fill in what only the machine can tell."""
    size = spec.local_world_size
    word = line.text("nproc-per-node") or ""
    if word in _MACHINE_TELLS:
        size = machine.count_workers(word, one_device_each=spec.virtual_local_rank)
    mode = line.text("numa-binding")
    cpus = machine.bind(mode, size) if mode else ()
    omp_threads = _omp_threads(line, size)
    if line.text("omp") == "auto":
        omp_threads = shares(cpus, size, machine.usable_cpus())
    return replace(spec, local_world_size=size, worker_cpus=cpus, omp_threads=omp_threads)


def shares(cpus: Sequence[Sequence[int]], size: int, usable: int) -> tuple[int, ...]:
    """How many of the usable CPUs each of `size` workers has for itself, at least 1.

    `cpus`: those each worker is bound to, empty if they are not bound. Workers on the same CPUs
    share them evenly. If a quota leaves fewer CPUs than there are, all get so much less.
    """
    if not cpus:
        return (max(1, usable // size),) * size
    users: dict[int, int] = {}
    for bound in cpus:
        for cpu in bound:
            users[cpu] = users.get(cpu, 0) + 1
    whole = [sum(1 / users[cpu] for cpu in bound) for bound in cpus]
    scale = min(1.0, usable / len(users))
    return tuple(max(1, int(share * scale + 1e-6)) for share in whole)


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
    args = line.args
    if line.old_form and not line.flag("use-env"):
        if kind is CommandKind.PROGRAM:
            raise UsageError(
                "--no-python needs --use-env in this form",
                "add it: LOCAL_RANK is then in the environment only",
            )
        args = ("--local-rank=${local_rank}", *args)
    return Command(kind, line.script, args, python)


def _local_world_size(line: CommandLine) -> int | None:
    """None if the machine has to tell."""
    if line.text("nproc-per-node") in _MACHINE_TELLS:
        return None
    word = (line.text("nproc-per-node") or "").lower().removesuffix("s")
    meant = "gpu" if word == "cuda" else word
    if meant in _MACHINE_TELLS:
        setting = line.settings["nproc-per-node"]
        raise bad(setting, "nproc-per-node", f"{meant}, in this spelling", f"write {meant}")
    return whole_number(
        line,
        "nproc-per-node",
        at_least=1,
        at_most=MOST_WORKERS,
        instead="or cpu, gpu, xpu, auto",
    )


def _nodes(line: CommandLine) -> tuple[int, int]:
    setting = line.settings["nnodes"]
    low, colon, high = setting.text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError:
        raise bad(setting, "nnodes", "a number, or MIN:MAX", "--nnodes=2 or --nnodes=1:4") from None
    if not 0 < least <= most:
        raise bad(setting, "nnodes", "at least 1, and MIN at most MAX", "--nnodes=1:4")
    return least, most


def _check_accepted(line: CommandLine, environ: Mapping[str, str], notes: list[str]) -> None:
    interval = line.settings["monitor-interval"]
    if number(interval) is None or not (number(interval) or 0) > 0:
        raise bad(interval, "monitor-interval", "a number of seconds above 0")
    for name in ("start-method", "numa-binding"):
        choice(line, name)
    events = line.settings["event-log-handler"]
    if events.text not in _EVENT_LOG_HANDLERS:
        raise bad(events, "event-log-handler", "one of " + ", ".join(_EVENT_LOG_HANDLERS))
    if events.text != "null":
        source = named(events, "event-log-handler")
        notes.append(f"{source} has no effect: no events are written")
    if line.flag("run-path") and line.text("start-method") != "spawn":
        source = named(line.settings["start-method"], "start-method")
        notes.append(f"{source} has no effect: workers are always started afresh")
    if line.flag("run-path") and (line.flag("module") or line.flag("no-python")):
        notes.append("--module and --no-python have no effect with --run-path")
    _check_variables(environ, notes)
    for variable, what in _NOT_HERE.items():
        if environ.get(variable, "0") not in ("", "0"):
            notes.append(f"{variable} has no effect: {what}")
    if line.text("logs-specs") not in (None, "default"):
        raise bad(
            line.settings["logs-specs"],
            "logs-specs",
            "`default`; plug-ins of torch's Python API cannot be loaded without torch",
            "leave it out",
        )


def _check_variables(environ: Mapping[str, str], notes: list[str]) -> None:
    """A PET_ variable that is nearly one of ours is a slip."""
    known = [option.variable for option in OPTIONS if option.pet]
    for name in environ:
        if name.startswith("PET_") and name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, n=1, cutoff=0.8)
            if close:
                notes.append(f"{name} has no effect; did you mean {close[0]}?")


def _omp_threads(line: CommandLine, local_world_size: int) -> tuple[int, ...]:
    if line.text("omp") in (None, "auto"):
        return ()
    threads = whole_number(line, "omp", at_least=1, at_most=_MOST_THREADS, instead="or auto")
    return (threads,) * local_world_size


def _signals(line: CommandLine, notes: list[str]) -> tuple[str, ...]:
    setting = line.settings["signals-to-handle"]
    known = []
    for name in (part.strip() for part in setting.text.split(",")):
        if name in ("SIGKILL", "SIGSTOP"):
            raise bad(setting, "signals-to-handle", "without SIGKILL and SIGSTOP: no program "
                       "can handle those", "leave them out")  # fmt: skip
        if name == "SIGCHLD":
            raise bad(setting, "signals-to-handle", "without SIGCHLD: phalanx is told by it that "
                       "a process has ended", "leave it out")  # fmt: skip
        if name in _SIGNALS:
            known.append(name)
        elif name and not known and name == setting.text.strip():
            raise bad(setting, "signals-to-handle", "names of signals with commas between",
                      "--signals-to-handle=SIGTERM,SIGINT")  # fmt: skip
        elif name:
            from difflib import get_close_matches

            close = get_close_matches(name, _SIGNALS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            source = named(setting, "signals-to-handle")
            notes.append(f"{source}: no signal is called {name}{hint}")
    return tuple(known)


def _shutdown_timeout(
    line: CommandLine, environ: Mapping[str, str], notes: list[str]
) -> float | None:
    if line.given("shutdown-timeout"):
        source = named(line.settings["shutdown-timeout"], "shutdown-timeout")
        seconds: float | None = whole_number(line, "shutdown-timeout", at_least=0)
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
    seconds = number(Setting(text, ""))
    if seconds is None or not seconds >= 0:
        raise UsageError(
            f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT is {text!r}, which is no number of seconds",
            "set it to a number, 0 or more, or unset it",
        )
    return seconds


def _stop_signal_to(line: CommandLine, command: Command) -> StopSignalTo:
    word = choice(line, "stop-signal-to")
    if word is None:
        program = command.kind is CommandKind.PROGRAM
        return StopSignalTo.GROUP if program else StopSignalTo.LEADER
    return StopSignalTo(word)
