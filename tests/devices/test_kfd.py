"""AMD's GPUs, from trees as the kernel's compute driver shows them."""

from __future__ import annotations

from pathlib import Path

from phalanx.devices.kfd import read_kfd

from . import trees


def test_a_box_with_eight_mi300(tmp_path: Path) -> None:
    buses = trees.mi300(tmp_path)
    found = read_kfd(str(tmp_path))

    assert [gpu.pci for gpu in found.usable] == [f"0000:{bus:02x}:00.0" for bus in buses]
    assert [gpu.index for gpu in found.usable] == list(range(8))
    assert {gpu.name for gpu in found.usable} == {"AMD gfx942"}
    assert found.usable[3].uuid == "GPU-badc0ffee0000003"
    assert found.total == 8


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """10 comes after 9."""
    trees.mi300(tmp_path, gpus=12)
    uuids = [gpu.uuid for gpu in read_kfd(str(tmp_path)).usable]

    assert uuids == sorted(uuids)


def test_a_container_that_may_use_two_of_eight(tmp_path: Path) -> None:
    buses = trees.mi300(tmp_path)
    for node in (2, 3, 5, 6, 7, 9):
        trees.hide_kfd_node(tmp_path, node)
    found = read_kfd(str(tmp_path))

    assert [gpu.pci[5:7] for gpu in found.usable] == [f"{buses[2]:02x}", f"{buses[6]:02x}"]
    assert (found.hidden, found.closed, found.total) == (6, 0, 8)


def test_a_gpu_without_its_render_node_cannot_be_used(tmp_path: Path) -> None:
    trees.mi300(tmp_path, gpus=2)
    (tmp_path / "dev/dri/renderD128").unlink()
    found = read_kfd(str(tmp_path))

    assert [gpu.uuid[-1] for gpu in found.usable] == ["1"]
    assert (found.closed, found.missing) == (1, "/dev/dri/renderD128")


def test_without_the_drivers_own_device_none_can_be_used(tmp_path: Path) -> None:
    trees.mi300(tmp_path, gpus=2)
    (tmp_path / "dev/kfd").unlink()
    found = read_kfd(str(tmp_path))

    assert (found.usable, found.closed, found.missing) == ((), 2, "/dev/kfd")


def test_cpus_are_no_gpus(tmp_path: Path) -> None:
    trees.kfd_node(tmp_path, 0, cpu_cores_count=16)

    assert read_kfd(str(tmp_path)).total == 0


def test_the_number_of_a_partition_is_no_part_of_the_address(tmp_path: Path) -> None:
    """It is above the address; some kernels had it in the place of the function."""
    trees.write(tmp_path, "dev/kfd", "")
    trees.write(tmp_path, "dev/dri/renderD128", "")
    trees.pci_device(tmp_path, "0001:c5:01.0", 1)
    node = {"simd_count": 1, "drm_render_minor": 128, "domain": 1}
    trees.kfd_node(tmp_path, 1, location_id=0xC508 | 3 << 28, **node)
    trees.kfd_node(tmp_path, 2, location_id=0xC508 | 3, **node)

    assert [gpu.pci for gpu in read_kfd(str(tmp_path)).usable] == ["0001:c5:01.0"] * 2


def test_an_old_gpu_has_neither_uuid_nor_version(tmp_path: Path) -> None:
    trees.write(tmp_path, "dev/kfd", "")
    trees.write(tmp_path, "dev/dri/renderD128", "")
    trees.kfd_node(tmp_path, 1, simd_count=4, drm_render_minor=128, unique_id=0)
    (gpu,) = read_kfd(str(tmp_path)).usable

    assert (gpu.uuid, gpu.name) == ("", "AMD GPU")


def test_odd_properties_are_passed_over(tmp_path: Path) -> None:
    trees.write(tmp_path, f"{trees.KFD}/1/properties", "simd_count\nx y z\nsimd_count four\n\0")
    trees.write(tmp_path, f"{trees.KFD}/not_a_number/properties", "simd_count 4")

    assert read_kfd(str(tmp_path)).total == 0


def test_without_the_driver_there_is_nothing(tmp_path: Path) -> None:
    assert read_kfd(str(tmp_path)).total == 0
