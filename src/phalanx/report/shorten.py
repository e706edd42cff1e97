"""PURE: an account of an exception in fewer lines.

The exception's own line stays, and so does the end of its message; the frames make way first. Every
cut is told with the number of lines that are gone.
"""

from __future__ import annotations

from phalanx.report.foreign import cut_middle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEAST", "shorten"]

#: One line for the frames, one for the exception, a mark and the end of the message.
LEAST = 4


def _one_row(line: str) -> int:
    return 1


def shorten(
    lines: tuple[str, ...],
    said_at: int | None,
    most: int,
    rows: Callable[[str], int] = _one_row,
) -> tuple[tuple[str, ...], int | None]:
    """At most `most` rows (`LEAST` or more), if the exception's line allows it.

    `said_at`: which line is the exception's; None: there is none. The same of the result is the
    second value. `rows`: how many a line from that one on takes; a frame takes one.
    """
    if said_at is None:
        return cut_middle(lines, most), None
    frames, message = lines[:said_at], lines[said_at + 1 :]
    room = most - rows(lines[said_at])
    for_message = max(2, room - len(frames), room // 2) if message else 0
    kept = len(message)
    while kept > 2 and _sum(cut_middle(message, kept, kept - 1), rows) > for_message:
        kept -= 1
    if kept < len(message):
        message = cut_middle(message, kept, kept - 1)
    for_frames = max(1, room - _sum(message, rows))
    frames = cut_middle(frames, for_frames, min(for_frames - 1, 1))
    return (*frames, lines[said_at], *message), len(frames)


def _sum(lines: tuple[str, ...], rows: Callable[[str], int]) -> int:
    return sum(map(rows, lines))
