"""PURE: what is done to whole lines on their way to a screen: prefixes, and tame escapes.

`prefixed` works on blocks of lines, at the speed of `bytes.replace`: it is on the path of jobs
that print a lot. The rest is for terminals, where a line may be written over by the next.
"""

from __future__ import annotations

__all__ = ["cut_to_width", "final_state", "one_row", "prefixed", "screen_lines", "tamed"]

ESC = b"\x1b"
RESET = b"\x1b[0m"
#: Control characters but for tab, backspace and escape.
_CONTROLS = bytes({*range(32), 127} - {8, 9, 27})


def prefixed(block: bytes, prefix: bytes) -> bytes:
    """Whole lines, each with its prefix. `block` is not empty and ends with a newline."""
    if not prefix:
        return block
    return prefix + block[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def screen_lines(block: bytes, prefix: bytes) -> bytes:
    """Whole lines as they would look at last on a terminal of their own, with a prefix each."""
    if b"\r" not in block and ESC not in block:
        return prefixed(block, prefix)
    lines = (tamed(final_state(line)) for line in block[:-1].split(b"\n"))
    return b"".join([prefix + line + b"\n" for line in lines])


def final_state(line: bytes) -> bytes:
    """The last of what was written over itself by carriage returns: what a reader is left with.

    The rest of a longer text that shines through behind a shorter one is not kept.
    """
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def tamed(line: bytes) -> bytes:
    """Without what would move the cursor or clear the screen, which is not its own; colours stay,
    and end with the line.
    """
    if ESC not in line:
        return line
    import re

    # Colours; other CSI sequences, OSC sequences (a title, a link), the short ones, and a lone
    # escape, with which a terminal would begin a sequence behind whatever comes between.
    kept = re.sub(
        rb"\x1b(?:(\[[0-9;:]*m)|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~]|)",
        lambda found: found[0] if found[1] else b"",
        line,
    )
    return kept + RESET if ESC in kept and not kept.endswith((RESET, b"\x1b[m")) else kept


def one_row(line: bytes) -> bytes:
    """A tamed line in characters that go to the right, so that its width can be told: no tabs, no
    steps down (form feeds), and where it goes back (a spinner) without what it is to write over.
    """
    line = line.translate(None, _CONTROLS).replace(b"\t", b"    ")
    if b"\b" not in line:
        return line
    import re

    kept: list[str] = []  # characters, and colours by themselves
    for part in re.findall(r"\x1b\[[0-9;:]*m|.", line.decode(errors="replace")):
        if part != "\b":
            kept.append(part)
        elif kept and len(kept[-1]) == 1:
            kept.pop()
    return "".join(kept).encode()


def cut_to_width(line: bytes, columns: int) -> bytes:
    """As much of a tamed line as fits into so many columns; colours take none."""
    if len(line) <= columns:
        return line
    import re
    import unicodedata

    kept, left = [], columns
    for escape, char in re.findall(r"(\x1b\[[0-?]*m)|(.)", line.decode(errors="replace"), re.S):
        if char:
            wide = unicodedata.east_asian_width(char) in "WF"
            left -= 0 if unicodedata.combining(char) else 1 + wide
            if left < 0:
                kept.append("\x1b[0m")
                break
        kept.append(escape or char)
    return "".join(kept).encode()
