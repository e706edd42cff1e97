"""This machine, as far as a job asks about it: CPUs and accelerators."""

from __future__ import annotations

import os

from phalanx.devices.count import count_workers
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Device", "Machine", "Reading"]


class Reading(Record):
    """What was read from where: texts for people."""

    what: str
    value: str
    source: str


class Device(Record):
    """One accelerator; `words` describe it."""

    words: str


class Machine:
    """Answers are looked up when asked for; `readings` and `notes` grow with them."""

    def __init__(self, environ: Mapping[str, str], python: str) -> None:
        self.notes: list[str] = []
        self.readings: list[Reading] = []

    def count_workers(self, word: str, *, one_device_each: bool = False) -> int:
        return count_workers(word)

    def usable_cpus(self) -> int:
        return len(os.sched_getaffinity(0))

    def bind(self, mode: str, local_world_size: int) -> tuple[tuple[int, ...], ...]:
        raise NotImplementedError

    def devices(self) -> tuple[Device, ...]:
        return ()
