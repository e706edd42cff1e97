"""What is read of a worker that failed: never more than a bound, whatever it has left there."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from phalanx.agent import evidence
from phalanx.agent.evidence import gather, memory_counters
from phalanx.report.evidence import MemoryCounters


def error_file(path: Path | str) -> bytes:
    return gather(str(path), b"", None).error_file


def test_the_error_file_is_read_whole_up_to_64_kib(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(b"x" * 65536)

    assert error_file(path) == b"x" * 65536


def test_of_a_longer_one_head_and_tail_are_read_and_the_gap_is_told(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    with open(path, "wb") as file:
        file.write(b"head")
        file.truncate(100_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"tail")

    found = error_file(path)

    assert found.startswith(b"head")
    assert found.endswith(b"tail")
    assert b"\n... %d octets left out ...\n" % (100_000_004 - 65536) in found
    assert len(found) < 66_000


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))

        for name in ("folder", "fifo", "link", "zero", "loop", "socket", "missing", "a\0b"):
            assert error_file(tmp_path / name) == b"", name
    assert error_file("") == b""
    assert error_file("/dev/tty") == b""


def test_an_unread_stderr_is_told_from_an_empty_one() -> None:
    assert gather("", None, None).stderr_read is False
    assert gather("", b"", None).stderr_read is True
    assert gather("", b"last words", None).stderr_tail == b"last words"


def test_shared_memory_is_measured() -> None:
    found = gather("", b"", MemoryCounters(1))

    assert found.memory_before == MemoryCounters(1)
    assert found.shm_size is not None
    assert found.shm_free is not None
    assert 0 <= found.shm_free <= found.shm_size


def test_the_machines_counter_is_there() -> None:
    """Since Linux 4.13 in /proc/vmstat."""
    assert memory_counters().machine_oom_kills is not None


def test_counting_takes_less_than_a_third_of_a_millisecond() -> None:
    memory_counters()
    times_s = []
    for _ in range(50):
        start_s = time.perf_counter()
        memory_counters()
        times_s.append(time.perf_counter() - start_s)

    assert min(times_s) < 0.0003


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own: /proc and /sys of phalanx's are below it."""
    read, exists = evidence._read, os.path.exists
    monkeypatch.setattr(evidence, "_read", lambda path: read(f"{tmp_path}{path}"))
    monkeypatch.setattr(evidence.os.path, "exists", lambda path: exists(f"{tmp_path}{path}"))
    monkeypatch.setattr(evidence, "_files", None)
    return tmp_path


def put(tree: Path, **files: str) -> None:
    for name, text in files.items():
        path = tree / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V2 = "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
VMSTAT = "nr_free_pages 7\noom_kill 11\nballoon_inflate 0\n"


def test_counters_of_a_version_2_group(tree: Path) -> None:
    folder = "sys__fs__cgroup__jobs__one__memory_dot_"
    put(tree, proc__self__cgroup="0::/jobs/one\n", proc__vmstat=VMSTAT)
    put(tree, **{f"{folder}events": V2, f"{folder}max": "67108864\n"})

    assert memory_counters() == MemoryCounters(2, 11, 67108864)


def test_counters_of_a_version_1_group(tree: Path) -> None:
    folder = "sys__fs__cgroup__memory__jobs__memory_dot_"
    put(tree, proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/jobs\n0::/\n")
    put(tree, **{f"{folder}oom_control": V1, f"{folder}limit_in_bytes": "9223372036854771712\n"})

    assert memory_counters() == MemoryCounters(5, None, None)


def test_in_a_container_the_root_of_the_tree_is_its_own_group(tree: Path) -> None:
    folder = "sys__fs__cgroup__memory_dot_"
    put(tree, proc__self__cgroup="0::/docker/0123456789ab\n")
    put(tree, **{f"{folder}events": V2, f"{folder}max": "max\n"})

    assert memory_counters() == MemoryCounters(2, None, None)


def test_without_proc_and_sys_nothing_is_counted(tree: Path) -> None:
    assert memory_counters() == MemoryCounters(None, None, None)


def test_rubbish_is_no_number(tree: Path) -> None:
    put(tree, proc__self__cgroup="rubbish\n::\n\n1\n", proc__vmstat="oom_kill many\n")

    assert memory_counters() == MemoryCounters(None, None, None)
