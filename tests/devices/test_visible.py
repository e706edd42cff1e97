"""Which GPUs the variables of NVIDIA and AMD leave, by their documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.devices.records import Gpu, MigDevice
from phalanx.devices.visible import amd_visible, cuda_visible, mig_names


def gpus(count: int, *, mig: tuple[int, ...] = ()) -> list[Gpu]:
    """UUIDs begin with GPU-0a, GPU-1a, ...; those in `mig` have two MIG devices."""
    return [
        Gpu(
            place,
            f"GPU-{place}a11-b22",
            f"0000:{place:02x}:00.0",
            "H100",
            place in mig,
            tuple(MigDevice(f"MIG-{place}-{gi}", gi, 0) for gi in (1, 2)) if place in mig else (),
        )
        for place in range(count)
    ]


def seen(value: str | None, count: int = 4) -> list[int]:
    """Numbers of the GPUs that are visible, in the order of the worker."""
    visible = cuda_visible(gpus(count), value)
    assert not visible.unclear
    assert [device.index for device in visible.devices] == list(range(len(visible.devices)))
    return [int(device.pci[5:7], 16) for device in visible.devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),  # the guide's own example
        ("-1", []),
        ("0,4,1", [0]),
        ("99999999999999999999999", []),
        ("1gpu2,2ampere", [1, 2]),
        (" 1 , 2", [1, 2]),
        ("+3", [3]),
        ("0,,1", [0]),
        ("0,1,", [0, 1]),
        ("NoDevFiles", []),
        ("all", []),
        ("1,1", []),
        ("0,1,2,1", []),
        ("0;1", [0]),
        ("GPU-2a11-b22", [2]),
        ("GPU-2,GPU-0a1", [2, 0]),
        ("GPU-", []),  # the start of several
        ("GPU-1,GPU-9,GPU-0", [1]),
        ("GPU-1,GPU-1", []),
        ("GPU-1,GPU-1a", []),
        ("GPU-1,0", [1]),
        ("0,GPU-1", [0]),
        ("gpu-1", []),
    ],
)
def test_cuda_visible_devices(value: str | None, expected: list[int]) -> None:
    assert seen(value) == expected


def test_one_gpu_may_be_named_by_no_more_than_the_first_letters() -> None:
    assert seen("GPU-", count=1) == [0]


@pytest.mark.parametrize("value", [None, "", "0,1,2,3", "2,1", "GPU-1,GPU-0"])
def test_a_list_that_is_read_to_its_end_is_not_said_to_be_cut(value: str | None) -> None:
    assert cuda_visible(gpus(4), value).cut == ""


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ("0,2,-1,1", "'-1' is no index of a GPU"),
        ("0,7", "'7' is none of this node's GPUs"),
        ("GPU-1,GPU-9", "'GPU-9' is none of this node's GPUs"),
        ("GPU-1,0", "'0' does not begin with GPU-"),
        ("MIG-0-1,MIG-0-7", "'MIG-0-7' is no MIG device of this node"),
        ("1,1", "a device is named twice, with which CUDA sees none"),
        ("GPU-1,GPU-1a", "a device is named twice, with which CUDA sees none"),
    ],
)
def test_where_a_list_is_cut_is_said(value: str, cut: str) -> None:
    assert cuda_visible(gpus(4, mig=(0,)), value).cut == cut


@given(st.text("0123-+,GPU a", max_size=10), st.integers(0, 5))
def test_any_text_gives_different_gpus_that_there_are(value: str, count: int) -> None:
    places = seen(value, count)

    assert len(places) == len({*places})
    assert all(place < count for place in places)


def _torchs_way(value: str, count: int) -> int:
    """What torch's own reading of a list of indices comes to, said another way."""
    indices: list[int] = []
    for entry in value.split(","):
        word = entry.strip()
        end = 0
        while end < len(word) and (word[end] in "0123456789" or (end == 0 and word[0] in "+-")):
            end += 1
        index = int(word[:end]) if word[:end].strip("+-") else -1
        if index in indices:
            return 0
        if index < 0:
            break
        indices.append(index)
    return next((place for place, index in enumerate(indices) if index >= count), len(indices))


@given(st.text("0123-+, x", max_size=9), st.integers(1, 4))
def test_indices_are_counted_as_by_torch(value: str, count: int) -> None:
    assert len(seen(value, count)) == _torchs_way(value, count)


# MIG


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("MIG-1-1", ["MIG-1-1"]),
        ("MIG-1-2,MIG-1-1,MIG-3-2", ["MIG-1-2", "MIG-1-1", "MIG-3-2"]),
        ("MIG-1-1,MIG-9-9,MIG-1-2", ["MIG-1-1"]),
        ("MIG-1-1,0", ["MIG-1-1"]),
        ("MIG-1-1,MIG-1-1", []),
        ("MIG-", []),
        ("MIG-GPU-1a11-b22/2/0", ["MIG-GPU-1a11-b22/2/0"]),
        ("MIG-GPU-1a11-b22/9/0", []),
        ("MIG-GPU-0a11-b22/1/0", []),  # a GPU that is not in MIG mode
    ],
)
def test_mig_devices_are_named_whole(value: str, names: list[str]) -> None:
    devices = cuda_visible(gpus(4, mig=(1, 3)), value).devices

    assert [device.uuid for device in devices] == names
    assert all(device.mig for device in devices)


def test_a_mig_device_is_where_its_gpu_is() -> None:
    first, second = cuda_visible(gpus(4, mig=(1, 3)), "MIG-3-1,MIG-1-1").devices

    assert (first.pci, second.pci) == ("0000:03:00.0", "0000:01:00.0")


@pytest.mark.parametrize("value", [None, "0,1", "GPU-1"])
def test_a_gpu_in_mig_mode_that_is_meant_as_a_whole_is_for_cuda_to_explain(
    value: str | None,
) -> None:
    visible = cuda_visible(gpus(4, mig=(1,)), value)

    assert (visible.devices, visible.unclear) == ((), "GPU 1 is in MIG mode")


def test_a_gpu_in_mig_mode_that_is_not_meant_is_no_trouble() -> None:
    assert len(cuda_visible(gpus(4, mig=(1,)), "0,2").devices) == 2


def test_names_of_mig_devices_are_counted_without_knowing_them() -> None:
    values = [None, "", "0", "MIG-a", "MIG-a,MIG-b,0", "MIG-a,MIG-a"]

    assert [mig_names(value) for value in values] == [0, 0, 0, 1, 2, 0]


# AMD


def amd(count: int = 4) -> list[Gpu]:
    return [
        Gpu(place, f"GPU-{place}badc0ffee00000{place}", f"0000:{place:02x}:00.0", "gfx942")
        for place in range(count)
    ]


def seen_by_hip(count: int = 4, **environ: str) -> list[int]:
    visible = amd_visible(amd(count), environ)
    assert [device.index for device in visible.devices] == list(range(len(visible.devices)))
    return [int(device.pci[5:7], 16) for device in visible.devices]


@pytest.mark.parametrize(
    ("rocr", "expected"),
    [
        ("2,1", [2, 1]),
        ("", []),
        ("0,GPU-3badc0ffee000003", [0, 3]),
        ("gpu-3BAD", [3]),
        ("GPU-", []),  # too short
        ("GPU-3badc0ffee0000031", []),  # too long
        ("0x1, 2", [1, 2]),
        ("0,4,1", [0]),
        ("0,1gpu,2", [0]),
        ("0,0,1", [0]),  # a doubled entry ends the list
        ("-1", []),
        ("0,,1", [0]),
    ],
)
def test_rocr_visible_devices(rocr: str, expected: list[int]) -> None:
    assert seen_by_hip(ROCR_VISIBLE_DEVICES=rocr) == expected


def test_rocr_wants_a_digit_of_a_uuid_where_there_is_one_gpu_only() -> None:
    assert seen_by_hip(1, ROCR_VISIBLE_DEVICES="GPU-") == []
    assert seen_by_hip(1, ROCR_VISIBLE_DEVICES="GPU-0") == [0]


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2,1", [2, 1]),
        ("", []),
        ("0,0,1", [0, 1]),  # a doubled entry is passed over
        ("0,4,1", [0]),
        ("0, 1", [0]),
        ("01", []),
        ("GPU-3badc0ffee000003,1", [3, 1]),
        ("GPU-9,1", []),
    ],
)
def test_hip_visible_devices(name: str, value: str, expected: list[int]) -> None:
    assert seen_by_hip(**{name: value}) == expected


def test_hip_counts_what_rocr_has_left() -> None:
    assert seen_by_hip(ROCR_VISIBLE_DEVICES="3,2", HIP_VISIBLE_DEVICES="1") == [2]
    assert seen_by_hip(ROCR_VISIBLE_DEVICES="3,2", CUDA_VISIBLE_DEVICES="1,2") == [2]
    assert seen_by_hip(ROCR_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="0") == []


def test_hips_own_variable_comes_before_cudas() -> None:
    assert seen_by_hip(HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0,2") == [1]


def test_opencls_variable_is_not_looked_at() -> None:
    assert seen_by_hip(GPU_DEVICE_ORDINAL="0") == [0, 1, 2, 3]


def test_which_of_amds_lists_is_cut_is_said() -> None:
    cut = amd_visible(amd(), {"ROCR_VISIBLE_DEVICES": "0,1,9", "HIP_VISIBLE_DEVICES": "0,2"}).cut

    assert cut == (
        "ROCR_VISIBLE_DEVICES: '9' is no further one of the 4 GPUs; "
        "HIP_VISIBLE_DEVICES: '2' is none of the 2 GPUs that are left"
    )
