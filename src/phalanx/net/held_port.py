"""A port for a server that is not ours: rank 0 hosts the store itself (`--store=worker`).

Workers are told the port long before rank 0 binds it. Until then nobody else may be given it, and
rank 0 must be able to have it. A socket that is bound, does not listen and has SO_REUSEADDR does
both. The kernel takes its port for no `bind` to port 0 and no `connect`, but lets a server that
sets that option bind beside it: torch's do, and those of Python, Go, Rust and gRPC. Whoever
connects too early is refused, and torch's client tries again.

On all addresses, even if MASTER_ADDR is a loopback one: torch's server binds all, so the port must
be free on all, and what only holds it exposes nothing.
"""

from __future__ import annotations

import _socket as net
from errno import EADDRINUSE

__all__ = ["hold"]

_PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def hold(port: int) -> tuple[int, list[net.socket]]:
    """The port, and the socket that holds it; 0 is for any free one. Raises OSError if it is taken.

    A named port is held only if the kernel could give it away by chance. Elsewhere nobody is given
    it, so it is merely seen to be free: there a server without SO_REUSEADDR can bind it, too.
    """
    holder = _bind_everywhere(port)
    if port and not _is_given_away(port):
        holder.close()
        return port, []
    return holder.getsockname()[1], [holder]


def _is_given_away(port: int) -> bool:
    """Whether the port is one of those that the kernel picks by itself."""
    try:
        with open(_PORT_RANGE) as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return True
    return low <= port <= high


def _bind_everywhere(port: int) -> net.socket:
    try:
        return _bind(net.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise
        return _bind(net.AF_INET, "0.0.0.0", port)  # this machine has no IPv6


def _bind(family: int, host: str, port: int) -> net.socket:
    sock = net.socket(family, net.SOCK_STREAM)
    try:
        if family == net.AF_INET6:
            sock.setsockopt(net.IPPROTO_IPV6, net.IPV6_V6ONLY, 0)
        # Before the bind for a named port, which a job may have left seconds ago; after it for a
        # free one, since two sockets with this option may be given the same (ip_autobind_reuse).
        if port:
            sock.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setsockopt(net.SOL_SOCKET, net.SO_REUSEADDR, 1)
    except OSError:
        sock.close()
        raise
    return sock
