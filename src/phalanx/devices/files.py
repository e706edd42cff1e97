"""Small files of /sys and /proc, read without ever raising: what cannot be read is not known."""

from __future__ import annotations

import os

from phalanx.devices.foreign import number

__all__ = ["entries", "exists", "number_in", "text_of"]

#: More than any such file has: mountinfo of a machine full of containers is the longest.
_MOST_OCTETS = 4 << 20


def text_of(path: str) -> str | None:
    """What the file says; None if it is not there or not for us."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_OCTETS).decode(errors="replace")
    except (OSError, ValueError):
        return None


def number_in(path: str) -> int | None:
    """The whole number that the file holds; None if there is none."""
    return number(text_of(path) or "")


def entries(folder: str) -> list[str]:
    """Names in a folder, sorted; none if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def exists(path: str) -> bool:
    """Is there anything of that name?"""
    return os.path.lexists(path)
