"""What holds for every test: no skip unseen, nothing left running, `long` only when asked for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hypothesis_profile  # noqa: F401  (sets it)
from skip_check import SkipCheck, read_allowed

pytest_plugins = ["pytester"]

ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"
#: How long a test's own child process may take to be gone after the test.
CHILDREN_GONE_S = 2.0


def pytest_configure(config: pytest.Config) -> None:
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        # `nohup make test` and `make test &`: what the tests start is to begin like anything else.
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    if not hasattr(config, "workerinput"):  # with xdist: once, where the results come together
        check = SkipCheck(read_allowed(ALLOWED_SKIPS), none_allowed=in_ci)
        config.pluginmanager.register(check, "skip-check")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, unless `-m` speaks of it; skip what root alone can do."""
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs root"))
    if "long" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def _children() -> set[int]:
    """Pids of the children of this process, zombies included."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except FileNotFoundError:
            pass  # a thread that has ended
    return found


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    """A test that leaves a child process of its own behind, even a dead one, fails."""
    before = _children()
    yield
    deadline = time.monotonic() + CHILDREN_GONE_S
    while left := _children() - before:
        if time.monotonic() > deadline:
            lines = [f"{pid}: {_command_line(pid)}" for pid in sorted(left)]
            pytest.fail("child processes left behind:\n" + "\n".join(lines), pytrace=False)
        time.sleep(0.01)


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return words.replace(b"\0", b" ").decode(errors="replace").strip() or "a zombie"
