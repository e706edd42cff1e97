"""PURE: which rendezvous a command line means, by torchrun's table, and where the store is then."""

from __future__ import annotations

from phalanx.cli.values import bad, named, whole_number
from phalanx.errors import ExitCode, StartError, UsageError
from phalanx.job import StoreAddress
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from phalanx.cli.parse import CommandLine

__all__ = ["Rendezvous", "check_conf", "rendezvous"]

_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
#: Keys of --rdzv-conf that torchrun's back ends know (torch 2.13).
_CONF_KEYS = frozenset(
    "join_timeout last_call_timeout close_timeout heartbeat_timeout keep_alive_interval "
    "keep_alive_max_attempt read_timeout is_host store_type timeout rank protocol ssl_cert "
    "ssl_cert_key ca_cert cert key cacert etcd_prefix".split()
)
_LOOPBACK = ("localhost", "::1", "ip6-localhost")


class Rendezvous(Record):
    """Run id and store address: what is left of a rendezvous when there is one node."""

    run_id: str
    store: StoreAddress


def rendezvous(
    line: CommandLine,
    min_nodes: int,
    max_nodes: int,
    fresh_id: Callable[[], str],
    notes: list[str],
) -> Rendezvous:
    """Torchrun's table of which rendezvous is meant (its reference, section 3.1), for one node."""
    backend = line.text("rdzv-backend")
    endpoint = (line.text("rdzv-endpoint") or "").strip()
    port = _master_port(line)
    if backend not in _BACKENDS:
        raise bad(
            line.settings["rdzv-backend"],
            "rdzv-backend",
            "one of " + ", ".join(_BACKENDS),
            "plug-ins for torchrun are made of torch, and cannot be loaded without it",
        )
    implied = backend == "static" and not endpoint and port is None and max_nodes == 1
    standalone = line.flag("standalone") or implied
    if max_nodes > 1:
        raise StartError(
            f"{named(line.settings['nnodes'], 'nnodes')}={line.text('nnodes')}: "
            "not yet on several nodes",
            "this version runs jobs on one node; torchrun runs this one",
            exit_code=ExitCode.UNAVAILABLE,
        )
    if standalone and whole_number(line, "node-rank", at_least=0):
        source = named(line.settings["node-rank"], "node-rank")
        notes.append(f"{source} has no effect: without --nnodes this is a job on one node")
    if line.flag("standalone") and port is not None:
        notes.append("--master-port has no effect with --standalone: a free port is chosen")
    if standalone:
        return Rendezvous(fresh_id(), StoreAddress("localhost", None))
    if backend not in ("static", "c10d"):
        raise StartError(
            f"--rdzv-backend={backend}: not yet (it serves jobs on several nodes)",
            "leave it out, or use c10d",
            exit_code=ExitCode.UNAVAILABLE,
        )
    node_rank = whole_number(line, "node-rank", at_least=0)
    run_id = line.text("rdzv-id") or ""
    if not run_id:
        run_id = fresh_id()
        notes.append(f"--rdzv-id is empty: the run id is {run_id}")
    if backend == "static":
        if node_rank >= max_nodes:
            raise bad(
                line.settings["node-rank"], "node-rank", f"less than the {max_nodes} of --nnodes"
            )
        return Rendezvous(run_id, _static_address(line, endpoint, port))
    if node_rank != 0:
        notes.append("--node-rank has no effect with --rdzv-backend=c10d")
    if endpoint and _conf(line).get("store_type") != "file":
        _endpoint(endpoint)  # checked only: with one node nobody has to be met there
    host = line.text("local-addr") or "localhost"
    return Rendezvous(run_id, _store_address(host, None))


def _static_address(line: CommandLine, endpoint: str, port: int | None) -> StoreAddress:
    if endpoint:
        host, named_port = _endpoint(endpoint)
        if named_port is None:
            raise bad(
                line.settings["rdzv-endpoint"],
                "rdzv-endpoint",
                "HOST:PORT in a static job",
                f"--rdzv-endpoint={endpoint}:29500",
            )
        return _store_address(host, named_port or None)
    host = (line.text("master-addr") or "127.0.0.1").strip().strip("[]")
    if not _is_host(host):
        raise bad(line.settings["master-addr"], "master-addr", "a host name or an address")
    return _store_address(host, 29500 if port is None else port or None)


def _store_address(host: str, port: int | None) -> StoreAddress:
    return StoreAddress(host, port, loopback=host in _LOOPBACK or host.startswith("127."))


def _master_port(line: CommandLine) -> int | None:
    """The port named by --master-port; 0 means any free one; None: not given."""
    if not line.given("master-port"):
        return None
    return whole_number(line, "master-port", at_least=0, at_most=65535)


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


def check_conf(line: CommandLine, notes: list[str]) -> None:
    """Note what of --rdzv-conf is ignored. Raises UsageError for what is no pair."""
    conf = _conf(line)
    unknown = [key for key in conf if key not in _CONF_KEYS]
    if unknown:
        notes.append("--rdzv-conf: ignored, not known: " + ", ".join(unknown))
    store_type = conf.get("store_type", "tcp")
    if store_type == "file":
        notes.append("--rdzv-conf: store_type=file is ignored: one node needs no file to meet at")
    elif store_type != "tcp":
        raise bad(line.settings["rdzv-conf"], "rdzv-conf", "with store_type=tcp or store_type=file")


def _conf(line: CommandLine) -> Mapping[str, str]:
    text = (line.text("rdzv-conf") or "").strip()
    found = {}
    for pair in text.split(",") if text else ():
        key, equals, value = pair.strip().partition("=")
        if not equals or not key.strip() or not value.strip():
            raise bad(
                line.settings["rdzv-conf"],
                "rdzv-conf",
                "pairs KEY=VALUE with commas between",
                "--rdzv-conf=join_timeout=600,last_call_timeout=30",
            )
        found[key.strip()] = value.strip()
    return found
