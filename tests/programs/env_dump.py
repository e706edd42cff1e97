"""Writes down what a worker was started with, as JSON in $DUMP_DIR.

    DUMP_DIR=/somewhere LAUNCHER env_dump.py [--fail-times N] [--fail-rank R] [--gather N] [ANY...]

The file is `<restart count>_<rank>_<pid>.json` and appears whole or not at all. Arguments that are
not its own are kept in `argv` and otherwise ignored. Standard library only.

`signals` holds the masks of /proc/self/status as they are in a running Python, which itself
catches SIGINT (bit 1) and ignores SIGPIPE (bit 12) and SIGXFSZ (bit 24); all else is the
launcher's doing.

With --fail-times N, rank R (default 0) exits with 3 while TORCHELASTIC_RESTART_COUNT is below N;
the other ranks then wait to be stopped. A launcher may stop them before they have written
anything: with --gather N, rank R fails only when N files of its attempt are there (10 s at most).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from typing import Any

FAIL_EXIT_CODE = 3
GATHER_LIMIT_S = 10.0


def restart_count() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def status_fields() -> dict[str, str]:
    with open("/proc/self/status") as file:
        pairs = (line.split(":", 1) for line in file)
        return {name: value.strip() for name, value in pairs}


def current_umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def rlimits() -> dict[str, tuple[int, int]]:
    """Soft and hard limit by name; -1 is unlimited."""
    names = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def open_files() -> dict[int, str]:
    """What each descriptor refers to; the one that lists them is already closed and left out."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return links


def observe() -> dict[str, Any]:
    status = status_fields()
    return {
        "env": dict(os.environ),
        "argv": sys.argv,
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "orig_argv": sys.orig_argv,
        "unbuffered": sys.stdout.write_through,  # by -u or PYTHONUNBUFFERED
        "stdin_isatty": os.isatty(0),
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt")},
        "umask": current_umask(),
        "rlimits": rlimits(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "files": open_files(),
    }


def write_dump(directory: str) -> None:
    name = f"{restart_count()}_{os.environ.get('RANK', 'none')}_{os.getpid()}.json"
    path = os.path.join(directory, name)
    observed = observe()
    with open(f"{path}.partial", "w") as file:
        json.dump(observed, file, indent=1)
    os.replace(f"{path}.partial", path)


def gather(directory: str, count: int) -> None:
    """Wait until `count` dumps of this attempt are there."""
    prefix = f"{restart_count()}_"
    deadline_s = time.monotonic() + GATHER_LIMIT_S
    while time.monotonic() < deadline_s:
        names = os.listdir(directory)
        if sum(n.startswith(prefix) and n.endswith(".json") for n in names) >= count:
            return
        time.sleep(0.005)
    sys.exit(f"env_dump: fewer than {count} dumps after {GATHER_LIMIT_S:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--fail-times", type=int, default=0)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--gather", type=int, default=0)
    arguments, _ = parser.parse_known_args()

    directory = os.environ["DUMP_DIR"]
    write_dump(directory)
    if restart_count() >= arguments.fail_times:
        return
    if int(os.environ["RANK"]) == arguments.fail_rank:
        gather(directory, arguments.gather)
        sys.exit(FAIL_EXIT_CODE)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
