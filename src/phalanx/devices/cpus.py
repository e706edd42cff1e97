"""How many CPUs a process here can really use: its affinity, and the quota of its control groups.

A container is mostly given CPUs by a quota, not by an affinity: it may run on all 128 CPUs of the
machine, for as much time as 4 of them have. Counting the affinity there starts 128 workers that
take turns, so the quota counts, too. It is that of the control group, or of one above it, that
allows least (cpu.max in version 2 of the interface; cpu.cfs_quota_us and cpu.cfs_period_us in
version 1; on a hybrid machine both are looked at).
"""

from __future__ import annotations

import os

from phalanx.devices.files import number_in, text_of
from phalanx.devices.foreign import number
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Quota", "affinity", "cpu_quota"]


class Quota(Record):
    """CPU time that a control group may use: `quota_us` of each `period_us`."""

    quota_us: int
    period_us: int
    #: The file that says so.
    source: str

    @property
    def cpus(self) -> float:
        return self.quota_us / self.period_us

    @property
    def whole_cpus(self) -> int:
        """Rounded down, for a worker that waits for its turn makes all others wait; at least 1."""
        return max(1, self.quota_us // self.period_us)


def affinity() -> frozenset[int]:
    """The CPUs that this process, and so its workers, may run on."""
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(root: str = "/") -> Quota | None:
    """The smallest quota that holds for this process; None if there is none, or none is known."""
    found = list(_quotas(root.rstrip("/")))
    return min(found, key=lambda quota: quota.cpus, default=None)


def _quotas(root: str) -> Iterator[Quota]:
    groups = _own_groups(text_of(f"{root}/proc/self/cgroup") or "")
    for version, top, mounted_from in _hierarchies(text_of(f"{root}/proc/self/mountinfo") or ""):
        path = groups.get(version)
        if path is not None:
            for folder in _upwards(root + top, _below(path, mounted_from)):
                quota = _quota_v2(folder) if version == 2 else _quota_v1(folder)
                if quota is not None:
                    yield quota


def _own_groups(text: str) -> dict[int, str]:
    """Path of our group by version of the interface, from /proc/self/cgroup."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found[2] = path
        elif "cpu" in controllers.split(","):
            found[1] = path
    return found


def _hierarchies(text: str) -> Iterator[tuple[int, str, str]]:
    """(version, mount point, group that is mounted there), from /proc/self/mountinfo."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        mount, kind = before.split(), after.split()
        if len(mount) < 6 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield 2, _unescaped(mount[4]), _unescaped(mount[3])
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            yield 1, _unescaped(mount[4]), _unescaped(mount[3])


def _unescaped(word: str) -> str:
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(octal, char)
    return word


def _below(path: str, mounted_from: str) -> str:
    """Where our group is below the mount point.

    A container without a cgroup namespace has its own group mounted, with the path that the host
    sees. What is not below the mount point at all (`..` in it) is taken to be mounted itself.
    """
    top = mounted_from.rstrip("/")
    inside = path == top or path.startswith(top + "/")
    return path[len(top) :] if inside and ".." not in path.split("/") else ""


def _upwards(top: str, below: str) -> Iterator[str]:
    """The folder of our group, and those of all above it up to the mount point."""
    names = [name for name in below.split("/") if name]
    for count in range(len(names), -1, -1):
        yield "/".join([top.rstrip("/"), *names[:count]])


def _quota_v2(folder: str) -> Quota | None:
    """`cpu.max` is "max 100000" or "250000 100000"; the topmost group has none."""
    words = (text_of(f"{folder}/cpu.max") or "").split()
    if len(words) != 2:
        return None
    return _valid(number(words[0]), number(words[1]), f"{folder}/cpu.max")


def _quota_v1(folder: str) -> Quota | None:
    quota_us = number_in(f"{folder}/cpu.cfs_quota_us")  # -1: no limit
    period_us = number_in(f"{folder}/cpu.cfs_period_us")
    return _valid(quota_us, period_us, f"{folder}/cpu.cfs_quota_us")


def _valid(quota_us: int | None, period_us: int | None, source: str) -> Quota | None:
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:
        return None
    return Quota(quota_us, period_us, source)
