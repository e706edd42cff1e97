"""Numbers and text of others: however odd they are, nothing breaks and no terminal obeys them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from phalanx.devices.cpus import cpu_quota
from phalanx.devices.foreign import harmless, number, quoted
from phalanx.devices.kfd import read_kfd
from phalanx.devices.records import Device, Gpu
from phalanx.devices.topology import read_topology
from phalanx.devices.visible import amd_visible, cuda_visible

from . import trees

LONG = "9" * 5000
GPUS = [Gpu(place, f"GPU-{place}", "", "X") for place in range(4)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 12\n", 12), ("-3", -3), ("+3", 3), ("0" * 5000 + "7", 7), (LONG, 10**20),
        ("-" + LONG, -(10**20)), (str(2**64 - 1), 2**64 - 1),
        ("", None), ("-", None), ("--1", None), ("²", None), ("٣", None), ("1_0", None),
        ("1.0", None), ("None", None),
    ],
)  # fmt: skip
def test_a_number_is_read_or_is_none(text: str, value: int | None) -> None:
    assert number(text) == value


def test_what_a_terminal_obeys_is_not_shown() -> None:
    assert harmless("\x1b[31mred\x85\u2028\u202e\udcff\n é") == "?[31mred????? é"
    assert quoted("\x1b" + "x" * 5000) == repr("\x1b" + "x" * 199 + "...")
    device = Device(0, "GPU-\x85", "0000:01:00.0", "\x1b[31mX", "nvidia")
    assert device.words == "?[31mX, GPU-?, 0000:01:00.0"


def test_an_index_of_thousands_of_digits_is_none_of_the_gpus() -> None:
    assert [device.uuid for device in cuda_visible(GPUS, f"1,{LONG}").devices] == ["GPU-1"]
    assert cuda_visible(GPUS, f"-{LONG}").devices == ()
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        assert len(amd_visible(GPUS, {name: f"1,{LONG}"}).devices) == 1
    assert amd_visible(GPUS, {"ROCR_VISIBLE_DEVICES": "٣"}).devices == ()


@pytest.mark.parametrize("entry", ["{}", "GPU-{}", "MIG-{}"])
def test_a_long_list_takes_no_time_to_speak_of(entry: str) -> None:
    value = ",".join(entry.format(place) for place in range(20000))
    started_s = time.process_time()
    cuda_visible(GPUS, value)

    assert time.process_time() - started_s < 0.5


def test_sysfs_with_odd_numbers_is_read(tmp_path: Path) -> None:
    trees.mi300(tmp_path, gpus=2)
    for name in ("²", "٣"):
        trees.write(tmp_path, f"{trees.KFD}/{name}/properties", "simd_count 1")
        trees.write(tmp_path, f"sys/devices/system/node/node{name}/cpulist", "0")
    trees.kfd_node(tmp_path, 9, simd_count=1)
    path = f"{trees.KFD}/9/properties"
    trees.write(tmp_path, path, f"simd_count {LONG}\ndrm_render_minor --1\ngfx ²")
    trees.write(tmp_path, "sys/devices/system/node/node0/cpulist", f"0-{LONG}")

    assert (read_kfd(str(tmp_path)).total, len(read_kfd(str(tmp_path)).usable)) == (3, 2)
    assert [node.number for node in read_topology(frozenset({0}), str(tmp_path)).nodes] == [0]


def test_a_quota_beyond_all_numbers_is_read(tmp_path: Path) -> None:
    trees.own_groups(tmp_path, "0::/")
    trees.mounts(tmp_path, trees.V2_MOUNT.format(root="/", at="/cg"))
    trees.write(tmp_path, "cg/cpu.max", f"{'9' * 400} 100000")
    quota = cpu_quota(str(tmp_path))

    assert quota is not None
    assert quota.cpus == 10**15
    trees.write(tmp_path, "cg/cpu.max", f"{LONG} ٣")
    assert cpu_quota(str(tmp_path)) is None
