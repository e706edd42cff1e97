"""The frozen description of one job, as one node sees it.

A `JobSpec` is made once, from the command line and the `PET_*` variables (`cli.spec`), and
validated there. Everything after that reads it and nothing changes it: no module of ours looks
into the environment for a setting, or talks to another through one.
"""

from __future__ import annotations

from enum import Enum

from phalanx.record import Record

__all__ = [
    "MOST_WORKERS",
    "Command",
    "CommandKind",
    "Console",
    "ConsoleMode",
    "JobSpec",
    "StopSignalTo",
    "StoreAddress",
]

#: More workers on one node than any machine runs: a slip of the keyboard, or of whoever counted,
#: found before it is tried.
MOST_WORKERS = 65536


class CommandKind(Enum):
    """What the word after the options is."""

    SCRIPT = "script"  #: a file for `python -u FILE`
    MODULE = "module"  #: a name for `python -u -m NAME`
    PROGRAM = "program"  #: an executable, looked up on PATH (`--no-python`)
    RUN_PATH = "run-path"  #: a file run as `__main__` by our own small program (`--run-path`)


class StopSignalTo(Enum):
    """Who gets the stop signal first (`--stop-signal-to`)."""

    LEADER = "leader"  #: the worker itself; its helpers only when it is gone, or near the end
    GROUP = "group"  #: the worker's whole process group, at once


class Command(Record):
    """What each worker runs. `args` are the user's, to the letter, `${local_rank}` unfilled."""

    kind: CommandKind
    target: str
    args: tuple[str, ...] = ()
    #: Interpreter of the workers: `$PYTHON_EXEC`, else the one that runs phalanx.
    python: str = ""


class StoreAddress(Record):
    """Where the workers' key-value store is, when this node has rank 0."""

    #: Byte for byte what workers get as MASTER_ADDR.
    host: str
    #: MASTER_PORT in every round if the user named one; None: a fresh port each round.
    port: int | None
    #: Listen on the loopback addresses only.
    loopback: bool = True


class ConsoleMode(Enum):
    """How the workers' output reaches the screen (`--console`)."""

    AUTO = "auto"  #: prefixed whole lines on a terminal, else whole lines; one worker: as it is
    RAW = "raw"  #: workers have our own streams
    PREFIX = "prefix"  #: whole lines with the rank before them, always
    FOLD = "fold"  #: as PREFIX, and what several ranks say alike is said once


#: Which streams of which local ranks: (local rank or None for all, 1 stdout | 2 stderr).
StreamChoice = tuple[tuple[int | None, int], ...]


class Console(Record):
    """Where the workers' output goes."""

    mode: ConsoleMode = ConsoleMode.AUTO
    #: Only these are shown, by local rank and by rank; None: all.
    local_ranks: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    #: To a file only; to a file and the console.
    redirects: StreamChoice = ()
    tee: StreamChoice = ()
    #: What stands before a line of --tee, with ${role_name}, ${rank} and ${local_rank} in it.
    template: str = "[${role_name}${local_rank}]:"
    #: Lines of --tee with any of these go to a file of all ranks, too.
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    #: A log file is put aside at so many octets; None: it grows.
    log_max_size: int | None = None
    #: The rank that has the terminal and its keyboard for itself; None: none.
    tty_rank: int | None = None


class JobSpec(Record):
    """One job, on this node. All numbers are validated; all texts are as the user gave them."""

    command: Command
    #: Run id; goes into TORCHELASTIC_RUN_ID.
    run_id: str
    #: Workers on this node, at least 1.
    local_world_size: int
    store: StoreAddress
    #: Rank 0's program serves the workers' store, none of our processes does (`--store=worker`).
    store_in_worker: bool = False
    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int = 0
    role: str = "default"
    #: Restarts of the worker group, 0 or more: in the whole life of the job, or in the window.
    max_restarts: int = 0
    #: The restarts are for any stretch of this length (`--max-restarts=3/1h`), in seconds.
    restart_window_s: float | None = None
    #: What cannot heal, as a missing module, is tried again as well (`--restart-on=always`).
    restart_on_always: bool = False
    #: Longest pause before a restart when failures come fast; 0: none.
    max_restart_delay_s: float = 30.0
    #: Between the first failure and the stop of the other workers.
    failure_grace_s: float = 0.0
    #: Directory the user chose with `--log-dir`; None: a temporary one; "/dev/null": none at all.
    log_dir: str | None = None
    #: `--shutdown-timeout`, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT, in seconds; None: not given.
    shutdown_timeout_s: float | None = None
    console: Console = Console()
    stop_signal_to: StopSignalTo = StopSignalTo.LEADER
    #: Signals that stop the job, in the user's order and spelling ("SIGTERM", ...).
    signals_to_handle: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    virtual_local_rank: bool = False
    #: CPUs of each local rank (`--numa-binding`); empty: those that phalanx may use.
    worker_cpus: tuple[tuple[int, ...], ...] = ()
    #: OMP_NUM_THREADS of each local rank (`--omp`); empty: torchrun's rule.
    omp_threads: tuple[int, ...] = ()
