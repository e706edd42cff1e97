"""The CPU quota of control groups, in trees as machines and containers have them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from phalanx.devices.cpus import cpu_quota
from phalanx.devices.machine import Machine

from . import trees


def usable(root: Path, cpus: int = 16) -> int:
    return Machine({}, sys.executable, str(root), allowed=frozenset(range(cpus))).usable_cpus()


def version_2(root: Path, group: str, mounted_from: str = "/") -> None:
    trees.own_groups(root, f"0::{group}")
    trees.mounts(root, trees.V2_MOUNT.format(root=mounted_from, at="/sys/fs/cgroup"))


def hybrid(root: Path, v1_group: str, v2_group: str = "/", mounted_from: str = "/") -> None:
    trees.own_groups(root, "9:name=systemd:/", f"1:cpu,cpuacct:{v1_group}", f"0::{v2_group}")
    trees.mounts(
        root,
        trees.V1_MOUNT.format(root=mounted_from, at="/sys/fs/cgroup/cpu"),
        trees.V2_MOUNT.format(root="/", at="/sys/fs/cgroup/unified"),
    )


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    version_2(tmp_path, "/a")
    trees.write(tmp_path, "sys/fs/cgroup/a/cpu.max", "max 100000")

    assert cpu_quota(str(tmp_path)) is None
    assert usable(tmp_path) == 16


@pytest.mark.parametrize(
    ("cpu_max", "workers"),
    [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("1000 1000000", 1),
     ("3200000 100000", 16)],
)  # fmt: skip
def test_a_quota_is_rounded_down_to_at_least_one(
    tmp_path: Path, cpu_max: str, workers: int
) -> None:
    version_2(tmp_path, "/a")
    trees.write(tmp_path, "sys/fs/cgroup/a/cpu.max", cpu_max)

    assert usable(tmp_path) == workers


def test_the_smallest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    version_2(tmp_path, "/slice/pod/container")
    trees.write(tmp_path, "sys/fs/cgroup/slice/cpu.max", "800000 100000")
    trees.write(tmp_path, "sys/fs/cgroup/slice/pod/cpu.max", "30000 10000")
    trees.write(tmp_path, "sys/fs/cgroup/slice/pod/container/cpu.max", "max 100000")

    quota = cpu_quota(str(tmp_path))

    assert quota is not None
    assert (quota.cpus, quota.source) == (3, f"{tmp_path}/sys/fs/cgroup/slice/pod/cpu.max")


def test_in_a_cgroup_namespace_the_own_group_is_the_top(tmp_path: Path) -> None:
    version_2(tmp_path, "/")
    trees.write(tmp_path, "sys/fs/cgroup/cpu.max", "200000 100000")

    assert usable(tmp_path) == 2


def test_version_1_has_two_files(tmp_path: Path) -> None:
    hybrid(tmp_path, "/docker/abc")
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu", -1)
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu/docker/abc", 350000)

    assert usable(tmp_path) == 3


def test_a_container_without_a_cgroup_namespace_finds_its_own_group_mounted(tmp_path: Path) -> None:
    """Its path in /proc/self/cgroup is the host's; what is mounted begins below it."""
    hybrid(tmp_path, "/docker/abc/inner", mounted_from="/docker/abc")
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu", 500000)
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu/inner", 300000)

    assert usable(tmp_path) == 3


@pytest.mark.parametrize("group", ["/other", "/../../other", "/docker/abcd"])
def test_a_group_that_is_not_below_the_mount_point_is_taken_for_it(
    tmp_path: Path, group: str
) -> None:
    hybrid(tmp_path, group, mounted_from="/docker/abc")
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu", 500000)
    for of_others in ("cpu/other", "other", "cpu/docker/abcd", "cpu/d"):
        trees.v1_quota(tmp_path, f"sys/fs/cgroup/{of_others}", 100000)

    assert usable(tmp_path) == 5


def test_on_a_hybrid_machine_both_hierarchies_count(tmp_path: Path) -> None:
    hybrid(tmp_path, "/a", "/b")
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu/a", 500000)
    trees.write(tmp_path, "sys/fs/cgroup/unified/b/cpu.max", "400000 100000")

    assert usable(tmp_path) == 4


def test_controllers_of_similar_names_are_others(tmp_path: Path) -> None:
    trees.own_groups(tmp_path, "1:cpu:/a", "2:cpuacct:/b", "3:cpuset:/c", "4:name=cpu:/d")
    trees.mounts(
        tmp_path,
        "31 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
        "32 30 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
    )
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu/a", 700000)
    for other in ("cpu/b", "cpu/c", "cpu/d", "cpuset/a", "cpuset/c"):
        trees.v1_quota(tmp_path, f"sys/fs/cgroup/{other}", 100000)

    assert usable(tmp_path) == 7


def test_a_mount_point_may_have_a_blank_in_it(tmp_path: Path) -> None:
    trees.own_groups(tmp_path, "0::/a")
    trees.mounts(tmp_path, trees.V2_MOUNT.format(root="/", at="/my\\040groups"))
    trees.write(tmp_path, "my groups/a/cpu.max", "300000 100000")

    assert usable(tmp_path) == 3


@pytest.mark.parametrize(
    "text", ["", "max", "100000", "a b", "0 100000", "100000 0", "-5 100000", "\0\xff" * 9]
)
def test_an_odd_file_is_no_quota(tmp_path: Path, text: str) -> None:
    version_2(tmp_path, "/a")
    trees.write(tmp_path, "sys/fs/cgroup/a/cpu.max", text)
    trees.v1_quota(tmp_path, "sys/fs/cgroup/cpu", text, text)

    assert usable(tmp_path) == 16


@pytest.mark.parametrize("file", ["cgroup", "mountinfo"])
@pytest.mark.parametrize("text", ["", ":::\n::\n\n0", "1 2 - cgroup2", "x" * 5000])
def test_odd_lists_of_groups_and_mounts_are_no_quota(tmp_path: Path, file: str, text: str) -> None:
    version_2(tmp_path, "/a")
    trees.write(tmp_path, "sys/fs/cgroup/a/cpu.max", "100000 100000")
    trees.write(tmp_path, f"proc/self/{file}", text)

    assert usable(tmp_path) == 16


def test_nothing_there_and_nothing_readable_is_no_quota(tmp_path: Path) -> None:
    assert usable(tmp_path) == 16
    version_2(tmp_path, "/a")
    (tmp_path / "sys/fs/cgroup/a/cpu.max").mkdir(parents=True)

    assert usable(tmp_path) == 16


def test_a_quota_that_makes_a_difference_is_said_with_its_file(tmp_path: Path) -> None:
    version_2(tmp_path, "/")
    trees.write(tmp_path, "sys/fs/cgroup/cpu.max", "250000 100000")
    machine = Machine({}, sys.executable, str(tmp_path), allowed=frozenset(range(8)))

    assert machine.count_workers("cpu") == machine.usable_cpus() == 2
    file = f"{tmp_path}/sys/fs/cgroup/cpu.max"
    assert machine.notes == [f"2 of 8 CPUs are counted: the CPU quota is 2.5 ({file})"]
    assert [(r.what, r.value, r.source) for r in machine.readings] == [
        ("CPU quota", "2.5 CPUs", file),
        ("usable CPUs", "2", "CPU quota (affinity: 8)"),
    ]


def test_this_machine_can_be_read() -> None:
    cpus = Machine(os.environ, sys.executable).usable_cpus()

    assert 1 <= cpus <= len(os.sched_getaffinity(0))
