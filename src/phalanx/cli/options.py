"""The table of options: one row is the flag, its `PET_*` variable, its help and its docs.

The parser (`cli.parse`), `--help` (`cli.help`) and `docs/reference/options.md` all read it.
Names, defaults and meanings are torchrun's (torch 2.13); options that torchrun does not have are
marked `ours`, and never take part in deciding what an abbreviation means.
"""

from __future__ import annotations

from phalanx.record import Record

__all__ = ["GROUPS", "OPTIONS", "Option"]

#: Headings of `--help`, in order.
GROUPS = (
    "Workers",
    "Nodes and rendezvous",
    "Restarts and stopping",
    "Output",
    "Devices",
    "Accepted for torchrun's sake",
    "Other",
)


class Option(Record):
    """One option. `name` is the spelling with dashes, without the leading ones."""

    name: str
    group: str
    help: str
    #: Placeholder of the value; empty for a flag.
    metavar: str = ""
    #: Text that stands for "not given" in the docs and is what the setting then is; None: nothing.
    default: str | None = None
    choices: tuple[str, ...] = ()
    short: str = ""
    #: Read from PET_<NAME> when absent from the command line.
    pet: bool = True
    #: Not an option of torchrun.
    ours: bool = False
    #: Known to the old form only, `python -m phalanx.launch`.
    old_form: bool = False

    @property
    def is_flag(self) -> bool:
        return not self.metavar

    @property
    def variable(self) -> str:
        """The environment variable that gives the default, e.g. PET_NPROC_PER_NODE."""
        return "PET_" + self.name.upper().replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option(
        "nproc-per-node",
        "Workers",
        "workers on this node: a number, cpu (usable CPUs), gpu, xpu, or auto (accelerators if "
        "there are any, else CPUs)",
        metavar="N",
        default="1",
    ),
    Option("module", "Workers", "run the script as a module, like python -m", short="-m"),
    Option("no-python", "Workers", "run the script as a program of its own, not with Python"),
    Option(
        "run-path",
        "Workers",
        "run the script as __main__ inside a small program of ours that writes the error file "
        "for it, as torch's @record does",
    ),
    Option(
        "role", "Workers", "role of the workers; ranks count within it", "NAME", default="default"
    ),
    Option(
        "nnodes",
        "Nodes and rendezvous",
        "number of nodes, or MIN:MAX for an elastic job (several nodes: not yet)",
        metavar="N|MIN:MAX",
        default="1:1",
    ),
    Option(
        "node-rank", "Nodes and rendezvous", "rank of this node in a static job", "N", default="0"
    ),
    Option(
        "rdzv-backend",
        "Nodes and rendezvous",
        "how nodes find each other: static, c10d, etcd, etcd-v2",
        metavar="NAME",
        default="static",
    ),
    Option(
        "rdzv-endpoint",
        "Nodes and rendezvous",
        "where nodes meet; IPv6 addresses in brackets",
        metavar="HOST[:PORT]",
        default="",
    ),
    Option(
        "rdzv-id",
        "Nodes and rendezvous",
        "run id, the same on all nodes of a job; ignored with --standalone",
        metavar="ID",
        default="none",
    ),
    Option(
        "rdzv-conf",
        "Nodes and rendezvous",
        "more settings of the rendezvous; unknown keys are ignored with a line",
        metavar="K=V,...",
        default="",
    ),
    Option(
        "standalone",
        "Nodes and rendezvous",
        "one node by itself: overrides --rdzv-backend, --rdzv-endpoint and --rdzv-id",
    ),
    Option(
        "master-addr",
        "Nodes and rendezvous",
        "MASTER_ADDR of a static job without --rdzv-endpoint",
        metavar="HOST",
        default="127.0.0.1",
    ),
    Option(
        "master-port",
        "Nodes and rendezvous",
        "MASTER_PORT, in every round, of a static job without --rdzv-endpoint; 0: a free one",
        metavar="PORT",
    ),
    Option(
        "local-addr",
        "Nodes and rendezvous",
        "address by which the other nodes reach this one",
        metavar="HOST",
    ),
    Option(
        "store",
        "Nodes and rendezvous",
        "who serves the workers' key-value store at MASTER_ADDR:MASTER_PORT: phalanx (agent), or "
        "rank 0's program (worker), which must bind it with SO_REUSEADDR, as torch does, or a port "
        "that you name with --master-port",
        metavar="WHO",
        default="agent",
        choices=("agent", "worker"),
        pet=False,
        ours=True,
    ),
    Option(
        "max-restarts",
        "Restarts and stopping",
        "how often the worker group may be restarted after a failure: N times in all, or within "
        "any stretch of time, as in 3/1h (s, m, h, d)",
        metavar="N[/TIME]",
        default="0",
    ),
    Option(
        "restart-on",
        "Restarts and stopping",
        "which failures are followed by a restart: those that another try may heal (failure), or "
        "also those of the first round that it cannot, as a missing module (always)",
        metavar="WHAT",
        default="failure",
        choices=("failure", "always"),
        pet=False,
        ours=True,
    ),
    Option(
        "max-restart-delay",
        "Restarts and stopping",
        "longest pause before a restart, in seconds; when workers fail within 10 s of their start "
        "again and again, pauses grow from 1 s to this; 0: none",
        metavar="SECONDS",
        default="30",
        pet=False,
        ours=True,
    ),
    Option(
        "failure-grace",
        "Restarts and stopping",
        "seconds between the first failure and the stop signal to the other workers, in which they "
        "may write down where they are",
        metavar="SECONDS",
        default="0",
        pet=False,
        ours=True,
    ),
    Option(
        "shutdown-timeout",
        "Restarts and stopping",
        "seconds between the stop signal and SIGKILL, whatever the reason of the stop; default: "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30 (27 when stopping on a signal)",
        metavar="SECONDS",
    ),
    Option(
        "signals-to-handle",
        "Restarts and stopping",
        "signals to phalanx that stop the job",
        metavar="NAMES",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Option(
        "stop-signal-to",
        "Restarts and stopping",
        "who gets the stop signal first: the worker itself (leader), so that it can save with "
        "its data loaders alive, or its whole process group (group); default: leader, and group "
        "with --no-python",
        metavar="WHO",
        choices=("leader", "group"),
        pet=False,
        ours=True,
    ),
    Option(
        "console",
        "Output",
        "how workers are shown: auto (several on a terminal: lines with the rank before them; "
        "else as written), raw (they have the streams of phalanx), prefix (the rank before each "
        "line, always), fold (so, and what several ranks say alike is said once)",
        metavar="MODE",
        default="auto",
        choices=("auto", "raw", "prefix", "fold"),
        pet=False,
        ours=True,
    ),
    Option(
        "local-ranks-filter",
        "Output",
        "show only these local ranks on the console; files are not affected",
        metavar="R,...",
        default="",
    ),
    Option(
        "ranks-filter",
        "Output",
        "show only these ranks on the console; files are not affected",
        metavar="R,...",
        default="",
        pet=False,
        ours=True,
    ),
    Option(
        "tty",
        "Output",
        "give the terminal and the keyboard to this rank alone, for pdb and the like; the other "
        "workers are not shown",
        metavar="RANK",
        pet=False,
        ours=True,
    ),
    Option(
        "log-dir",
        "Output",
        "keep error and log files below this directory; /dev/null: nowhere; default: a temporary "
        "directory that is removed when all goes well",
        metavar="DIR",
    ),
    Option(
        "redirects",
        "Output",
        "streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:N with commas "
        "between",
        metavar="N|RANK:N,...",
        default="0",
        short="-r",
    ),
    Option(
        "tee",
        "Output",
        "streams that go to files and to the console, as --redirects",
        metavar="N|RANK:N,...",
        default="0",
        short="-t",
    ),
    Option(
        "log-max-size",
        "Output",
        "put a log file aside when it has this size, in octets or with K, M, G; the last three "
        "(.1 is the newest) are kept; default: no limit",
        metavar="SIZE",
        pet=False,
        ours=True,
    ),
    Option(
        "duplicate-stdout-filters",
        "Output",
        "with --tee: copy stdout lines with any of these texts to a file of all ranks",
        metavar="TEXT,...",
        default="",
    ),
    Option(
        "duplicate-stderr-filters",
        "Output",
        "with --tee: copy stderr lines with any of these texts to a file of all ranks",
        metavar="TEXT,...",
        default="",
    ),
    Option(
        "virtual-local-rank",
        "Devices",
        "give each worker LOCAL_RANK=0 and one device in CUDA_VISIBLE_DEVICES",
    ),
    Option(
        "numa-binding",
        "Devices",
        "bind each worker to CPUs near its device: those of its NUMA node, of its socket, cores "
        "of that node that no other worker has, or the cores of one last-level cache",
        metavar="MODE",
        choices=("node", "socket", "exclusive", "core-complex"),
        pet=False,
    ),
    Option(
        "omp",
        "Devices",
        "OMP_NUM_THREADS of each worker: a number, or auto, its share of the usable CPUs; "
        "default: what is in the environment, else 1 if there are several workers",
        metavar="N|auto",
        pet=False,
        ours=True,
    ),
    Option(
        "monitor-interval",
        "Accepted for torchrun's sake",
        "without effect: nothing is polled, deaths are noticed at once",
        metavar="SECONDS",
        default="0.1",
    ),
    Option(
        "start-method",
        "Accepted for torchrun's sake",
        "without effect: workers are always started afresh",
        metavar="METHOD",
        default="spawn",
        choices=("spawn", "fork", "forkserver"),
    ),
    Option(
        "event-log-handler",
        "Accepted for torchrun's sake",
        "without effect; console and dynamic_rendezvous are said to be so in a line",
        metavar="NAME",
        default="null",
    ),
    Option(
        "logs-specs",
        "Accepted for torchrun's sake",
        "without effect; anything but `default` is refused",
        metavar="NAME",
        pet=False,
    ),
    Option(
        "dry-run",
        "Other",
        "print what would be started, and what that was read from; start nothing",
        pet=False,
        ours=True,
    ),
    Option("json", "Other", "with --dry-run: print it as JSON", pet=False, ours=True),
    Option(
        "use-env",
        "Other",
        "do not give the script --local-rank=N as its first argument",
        pet=False,
        old_form=True,
    ),
    Option("help", "Other", "print this and leave", short="-h", pet=False),
    Option("version", "Other", "print the version and leave", pet=False, ours=True),
)
