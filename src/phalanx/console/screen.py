"""PURE: a terminal that several ranks share: whole lines that scroll, and at most one live line.

The live line is the last on the screen: the unfinished line of the lowest rank that has one (a bar,
a prompt). Before whole lines are written it is wiped away, behind them it is drawn anew.
"""

from __future__ import annotations

from phalanx.console.lines import cut_to_width, final_state, one_row, tamed

__all__ = ["Screen"]

#: To the beginning of the line, and clear it.
WIPE = b"\r\x1b[K"


class Screen:
    """What is on the last line, and the octets that change it."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._shown = b""

    @property
    def has_live_line(self) -> bool:
        return bool(self._shown)

    def update(self, lines: list[bytes], prefix: bytes, unfinished: bytes) -> list[bytes]:
        """Print whole lines, and leave this one as live line (empty: none)."""
        live = b""
        if unfinished:
            text = one_row(tamed(final_state(unfinished)))
            # one column stays free: some terminals wrap at the last
            live = cut_to_width(prefix + text, self.columns - 1)
        if not lines and live == self._shown:
            return []
        wipe = [WIPE] if self._shown else []
        self._shown = live
        return [*wipe, *lines, live] if live else [*wipe, *lines]
