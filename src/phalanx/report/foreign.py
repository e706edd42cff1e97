"""PURE: text that workers wrote, made fit to be printed among ours.

What a worker leaves behind may be anything: binary, cut in the middle of a character, coloured,
or made to act on a screen. Behind this module it is lines of printable characters.
"""

from __future__ import annotations

import re

from phalanx.say import printable

__all__ = ["MOST_OCTETS", "clean", "cut_middle", "lines_of", "text_of"]

#: More of one file or stream than this is not looked at.
MOST_OCTETS = 128 * 1024
#: A line is cut to this many characters.
_LINE = 2000
#: What a terminal takes as orders: colours and cursor moves, titles and links, the rest.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-Z\\^-~])"
)
#: The line that stands for others, which may itself be cut away.
_GONE = re.compile(r"^  \.\.\. (\d{1,9}) lines \.\.\.$")


def text_of(octets: bytes) -> str:
    """As UTF-8; what is none is shown as U+FFFD. Bounded."""
    return octets[-MOST_OCTETS:].decode("utf-8", "replace")


def lines_of(text: str) -> list[str]:
    """Its lines, clean; empty ones at both ends are left out."""
    found = [clean(line) for line in text[-MOST_OCTETS:].split("\n")]
    start, end = 0, len(found)
    while start < end and not found[start]:
        start += 1
    while end > start and not found[end - 1]:
        end -= 1
    return found[start:end]


def clean(line: str) -> str:
    """One line as a screen would show it: nothing in it ends the line, or acts on a screen."""
    line = line.rstrip()
    if not line.isprintable():
        line = _ESCAPES.sub("", line)
        line = line.rpartition("\r")[2]  # a progress bar has drawn over what was there
        line = printable(line.expandtabs().rstrip())
    return line if len(line) <= _LINE else f"{line[: _LINE - 4]} ..."


def cut_middle(lines: tuple[str, ...], most: int, last: int = 1) -> tuple[str, ...]:
    """At most `most` (3 or more) lines: the middle makes way for a line that counts what is gone.

    Of what stays, `last` lines at least are from the end, and half if there is room.
    """
    if len(lines) <= most:
        return lines
    behind = min(max(last, (most - 1) // 2), most - 1)
    before = most - 1 - behind
    middle = lines[before : len(lines) - behind]
    earlier = [int(found[1]) - 1 for found in map(_GONE.match, middle) if found]
    gone = len(middle) + sum(earlier)
    return (*lines[:before], f"  ... {gone} lines ...", *lines[len(lines) - behind :])
