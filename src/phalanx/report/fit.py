"""PURE: a line cut to the width of a screen so that its beginning and its end stay readable."""

from __future__ import annotations

import re

__all__ = ["cut", "rows_of", "width_of"]

#: A path that is worth cutting: in its middle, so that the file's name stays.
_PATH = re.compile(r"[^\s\"':;,()]*/[^\s\"';,()]*")
_SHORTEST_PATH = 16
_MARK = "..."


def cut(line: str, width: int) -> str:
    """The line in at most `width` columns: a long path loses its middle, then the line its end."""
    if width_of(line) <= width:
        return line
    for path in sorted(_PATH.findall(line), key=len, reverse=True):
        over = width_of(line) - width
        if over <= 0 or len(path) <= _SHORTEST_PATH:
            break
        keep = max(_SHORTEST_PATH, len(path) - over - len(_MARK))
        if keep + len(_MARK) < len(path):
            line = line.replace(path, _without_middle(path, keep), 1)
    if width_of(line) <= width:
        return line
    end = len(line)
    while end > 0 and width_of(line[:end]) > width - len(_MARK):
        end -= max(1, (width_of(line[:end]) - width) // 2)
    return line[:end] + _MARK


def _without_middle(path: str, keep: int) -> str:
    """Two thirds of what is kept are from the end: there is the file's name."""
    front = keep // 3
    return path[:front] + _MARK + path[len(path) - (keep - front) :]


def width_of(text: str) -> int:
    """Columns on a screen: characters of East Asia take two of them."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text
    )


def rows_of(text: str, width: int | None) -> int:
    """Rows that a screen of this width shows it in, if it is not cut; None: one."""
    return max(1, -(-width_of(text) // width)) if width else 1
