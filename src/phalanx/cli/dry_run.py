"""PURE: what `--dry-run` shows: each worker as it would be started, and what that was read from.

`describe` gives one structure, which is the JSON of `--json` as it stands; `as_text` lays the same
out for people. A `?` in either is a digit that is made up at the start.

Nothing here is an imitation: ranks come from the coordinator, commands and variables from the
functions that make the start order.
"""

from __future__ import annotations

from phalanx.agent.log_paths import folder_name
from phalanx.agent.start_order import start_order
from phalanx.cli.options import OPTIONS
from phalanx.devices.cpulist import format_cpu_list
from phalanx.record import Record
from phalanx.rendezvous.coordinator import Coordinator, Limits
from phalanx.rendezvous.effects import Assignment, StartRound
from phalanx.rendezvous.events import NodeJoined, StoreOffer
from phalanx.rendezvous.member import GRACE_AFTER_FAILURE_S, GRACE_ON_SIGNAL_S
from phalanx.report.words import duration
from phalanx.say import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from phalanx.cli.parse import CommandLine
    from phalanx.cli.spec import Plan
    from phalanx.job import JobSpec

__all__ = ["MADE_UP_ID", "Facts", "Source", "as_text", "describe"]

#: Stands for a run id that is made up at the start.
MADE_UP_ID = "????????-????-????-????-????????????"
#: Version of the JSON: raised when a field changes its meaning or goes.
VERSION = 1
FREE_PORT = "(a free port)"
#: Variables that phalanx looks at, beside PET_*; those that are set are listed.
_VARIABLES = (
    "PYTHON_EXEC",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "CUDA_VISIBLE_DEVICES",
    "TMPDIR",
    "LOGLEVEL",
)
#: More different values of a variable than this are not all shown to people.
_MOST_VALUES = 8


class Source(Record):
    """What was read from where: texts for people."""

    what: str
    value: str
    source: str


class Facts(Record):
    """What was found on this machine."""

    host: str
    #: CPUs that phalanx may use.
    cpus: tuple[int, ...]
    #: A few words for each accelerator that workers can see, in their order.
    devices: tuple[str, ...]
    readings: tuple[Source, ...]
    #: Directory below which the job's directory would be made; None: no files at all.
    log_root: str | None


def describe(
    plan: Plan, line: CommandLine, environ: Mapping[str, str], facts: Facts
) -> dict[str, Any]:
    """What would be started. Texts, numbers, lists and dictionaries: all that JSON has."""
    spec = plan.spec
    placed = _assignment(spec, facts.host)
    order = start_order(spec, placed, _error_files(spec, facts), environ)
    workers = []
    for local_rank, argv, added, cpus in order.workers:
        if spec.store.port is None:
            added = {**added, "MASTER_PORT": FREE_PORT}
        workers.append(
            {
                "rank": placed.rank_base + local_rank,
                "local_rank": local_rank,
                "command": list(argv),
                "cpus": list(cpus or facts.cpus),
                "device": facts.devices[local_rank] if local_rank < len(facts.devices) else None,
                "environment": {name: added[name] for name in sorted(added)},
            }
        )
    return {
        "version": VERSION,
        "job": _job(spec, facts, whole_group=order.whole_group),
        "workers": workers,
        "read": [
            {"what": row.what, "value": row.value, "from": row.source}
            for row in (*_settings(line), *_variables(environ), *facts.readings)
        ],
        "notes": list(plan.notes),
    }


def _assignment(spec: JobSpec, host: str) -> Assignment:
    """This node's place in the first round, from the coordinator itself."""
    coordinator = Coordinator(Limits.of(spec))
    offer = StoreOffer(spec.store.host, spec.store.port or 0)
    joined = NodeJoined("dry run", host, spec.local_world_size, spec.role, offer)
    for effect in coordinator.handle(joined, 0.0):
        if isinstance(effect, StartRound):
            return effect.assignment
    raise AssertionError("one node of one is a round")


def _job(spec: JobSpec, facts: Facts, *, whole_group: bool) -> dict[str, Any]:
    given_s = spec.shutdown_timeout_s
    return {
        "run_id": spec.run_id,
        "host": facts.host,
        "nodes": [spec.min_nodes, spec.max_nodes],
        "local_world_size": spec.local_world_size,
        "role": spec.role,
        "max_restarts": spec.max_restarts,
        "restarts": {
            "window_s": spec.restart_window_s,
            "on": "always" if spec.restart_on_always else "failure",
            "max_delay_s": spec.max_restart_delay_s,
            "failure_grace_s": spec.failure_grace_s,
        },
        "store": {
            "host": spec.store.host,
            "port": spec.store.port,
            "served_by": "rank 0" if spec.store_in_worker else "phalanx",
            "loopback_only": spec.store.loopback,
        },
        "stop": {
            "signals": list(spec.signals_to_handle),
            "sent_to": "group" if whole_group else "leader",
            "timeout_s": GRACE_AFTER_FAILURE_S if given_s is None else given_s,
            "timeout_on_signal_s": GRACE_ON_SIGNAL_S if given_s is None else given_s,
        },
        "log_dir": facts.log_root,
    }


def _error_files(spec: JobSpec, facts: Facts) -> list[str]:
    if facts.log_root is None:
        return [""] * spec.local_world_size
    folder = f"{facts.log_root}/{folder_name(spec.run_id)}_????????/attempt_0"
    return [f"{folder}/{local_rank}/error.json" for local_rank in range(spec.local_world_size)]


def _settings(line: CommandLine) -> list[Source]:
    """Every option that was given, in the order of the help."""
    rows = []
    for option in OPTIONS:
        setting = line.settings.get(option.name)
        if setting is None or not setting.source or option.name in ("dry-run", "json"):
            continue
        on_the_line = setting.source.startswith("-")
        source = "command line" if on_the_line else f"variable {setting.source}"
        value = "on" if option.is_flag else setting.text
        rows.append(Source(f"--{option.name}", value, source))
    return rows


def _variables(environ: Mapping[str, str]) -> list[Source]:
    return [Source(name, environ[name], "environment") for name in _VARIABLES if name in environ]


# For people


def as_text(description: Mapping[str, Any]) -> str:
    """The same, laid out in tables."""
    sections = [
        "This would be started; nothing has been. A ? stands for what is chosen at the start.",
        _table("Job", _job_rows(description["job"])),
        _table("Workers", _worker_rows(description["workers"])),
        _table("Variables, beside those inherited", _variable_rows(description["workers"])),
        _table("Read", [(row["what"], row["value"], row["from"]) for row in description["read"]]),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _job_rows(job: Mapping[str, Any]) -> list[tuple[str, ...]]:
    size, store, stop = job["local_world_size"], job["store"], job["stop"]
    port = "a free port, fresh in every round" if store["port"] is None else f"port {store['port']}"
    where = " on loopback" if store["loopback_only"] else " on all addresses"
    if store["served_by"] == "rank 0":
        where = ""  # where it listens is for rank 0's program to say
    first = "the worker, its helpers when it is gone"
    if stop["sent_to"] == "group":
        first = "the worker's process group"
    grace = f"SIGKILL after {stop['timeout_s']:g} s"
    if stop["timeout_on_signal_s"] != stop["timeout_s"]:
        grace += f", {stop['timeout_on_signal_s']:g} s if phalanx was signalled"
    return [
        ("run id", job["run_id"]),
        ("workers", f"{size} on {job['host']}, role {job['role']}"),
        ("restarts", _restarts(job)),
        ("store", f"{store['host']}, {port}, served by {store['served_by']}{where}"),
        ("stopped by", ", ".join(stop["signals"]) or "no signal"),
        ("stop signal", f"to {first}; {grace}"),
        ("error files", f"below {job['log_dir']}" if job["log_dir"] else "none"),
    ]


def _restarts(job: Mapping[str, Any]) -> str:
    """How often, for people; and what is not as usual."""
    rules = job["restarts"]
    if not job["max_restarts"]:
        return "none"
    window = f" within {duration(rules['window_s'])}" if rules["window_s"] else ""
    hopeless = ", of what cannot heal, too" if rules["on"] == "always" else ""
    return f"at most {job['max_restarts']}{window}{hopeless}"


def _worker_rows(workers: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    from shlex import join

    rows: list[tuple[str, ...]] = [("rank", "local rank", "CPUs", "device", "command")]
    for worker in workers:
        rows.append(
            (
                str(worker["rank"]),
                str(worker["local_rank"]),
                format_cpu_list(worker["cpus"]),
                worker["device"] or "-",
                join(worker["command"]),
            )
        )
    return rows


def _variable_rows(workers: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (name, _together([str(worker["environment"][name]) for worker in workers]))
        for name in workers[0]["environment"]
    ]


def _together(values: Sequence[str]) -> str:
    """The values of all workers in one: what they have in common once, what differs in braces."""
    if len({*values}) == 1:
        return values[0]
    shown = [*values] if len(values) <= _MOST_VALUES else [*values[:2], values[-1]]
    head = _common(shown)
    tail = _common([value[len(head) :][::-1] for value in shown])[::-1]
    parts = [value[len(head) : len(value) - len(tail)] for value in shown]
    if len(shown) < len(values):
        parts.insert(-1, "...")
    return " | ".join(parts) if not head + tail else head + "{" + ",".join(parts) + "}" + tail


def _common(texts: Sequence[str]) -> str:
    """The beginning that all have in common."""
    shortest = min(texts, key=len)
    for position, character in enumerate(shortest):
        if any(text[position] != character for text in texts):
            return shortest[:position]
    return shortest


def _table(heading: str, rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    safe = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    lines = [heading]
    for row in safe:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
