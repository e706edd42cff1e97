"""Looks at what a failed worker has left on this machine: its error file, /dev/shm, and how often
the kernel has killed for want of memory.

What is not to be had is None or empty. Nothing here raises, waits, or reads more than a bound: the
error file's name is in the worker's hands, and it may have made anything of it.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from phalanx.report.evidence import Evidence, MemoryCounters

__all__ = ["gather", "memory_counters"]

#: Of a longer error file the head and the tail are read, so much of each.
_HALF = 32 * 1024
_SHM = "/dev/shm"
#: An unlimited control group of version 1 has a limit near 2**63.
_NO_LIMIT = 1 << 60


def gather(error_file: str, tail: bytes | None, memory_before: MemoryCounters | None) -> Evidence:
    """What a worker has left.

    `error_file`: its path, "" for none. `tail`: the last of its stderr; None: nobody read that.
    """
    shm_size, shm_free = _shm()
    return Evidence(
        error_file=_read_file(error_file) if error_file else b"",
        stderr_tail=tail or b"",
        stderr_read=tail is not None,
        memory_before=memory_before,
        shm_size=shm_size,
        shm_free=shm_free,
    )


def _read_file(path: str) -> bytes:
    """A regular file, without its middle if it is long."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        found = os.fstat(fd)
        if not S_ISREG(found.st_mode):
            return b""
        if found.st_size <= 2 * _HALF:
            return os.pread(fd, 2 * _HALF, 0)
        gone = found.st_size - 2 * _HALF
        # In JSON this falls into a text, most likely: the traceback, which then tells of the gap.
        gap = b"\n... %d octets left out ...\n" % gone
        return os.pread(fd, _HALF, 0) + gap + os.pread(fd, _HALF, found.st_size - _HALF)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _shm() -> tuple[int | None, int | None]:
    """Size of /dev/shm and what is free in it."""
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


# Memory


class _Files:
    """Where this process's control group tells of its memory; looked up once."""

    def __init__(self) -> None:
        self.events = self.limit = ""
        for line in _read("/proc/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "" and not self.events:
                self._choose("/sys/fs/cgroup", path, "memory.events", "memory.max")
            elif "memory" in controllers.split(","):
                names = "memory.oom_control", "memory.limit_in_bytes"
                self._choose("/sys/fs/cgroup/memory", path, *names)

    def _choose(self, root: str, path: str, events: str, limit: str) -> None:
        # In a container the path may be the host's, and the container's own group the root here.
        for folder in (root + path, root):
            if os.path.exists(f"{folder}/{events}"):
                self.events, self.limit = f"{folder}/{events}", f"{folder}/{limit}"
                return


_files: _Files | None = None


def memory_counters() -> MemoryCounters:
    """How often the kernel has killed for want of memory, up to now."""
    global _files
    if _files is None:
        _files = _Files()
    limit = _number(_read(_files.limit)) if _files.limit else None
    return MemoryCounters(
        _counted(_read(_files.events), "oom_kill") if _files.events else None,
        _counted(_read("/proc/vmstat"), "oom_kill"),
        limit if limit is not None and limit < _NO_LIMIT else None,
    )


def _counted(text: str, name: str) -> int | None:
    """The number behind this name, in a file of lines "NAME NUMBER"."""
    _, found, rest = f"\n{text}".partition(f"\n{name} ")
    return _number(rest.partition("\n")[0]) if found else None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:  # "max"
        return None


def _read(path: str) -> str:
    """A small file of the kernel's; "" if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 65536).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
