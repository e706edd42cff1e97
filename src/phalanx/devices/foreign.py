"""PURE: numbers and text that others wrote, read without trust in what they are.

Variables, files of /sys and what a driver's library or torch prints may hold anything: numbers of
thousands of digits, which Python refuses to read, digits of other scripts, and characters that a
terminal obeys.
"""

from __future__ import annotations

__all__ = ["harmless", "number", "quoted", "shortened"]

#: As many digits as 64 bits have. What is longer is no number of anything here.
_MOST_DIGITS = 20
_ENDLESS = 10**_MOST_DIGITS
_MOST_SHOWN = 200


def number(text: str) -> int | None:
    """The whole number that the text is; None if it is none.

    One of more than 20 digits is taken for 10^20, which is larger than all that can be meant.
    """
    word = text.strip()
    sign = word[:1] if word[:1] in ("+", "-") else ""
    digits = word[len(sign) :]
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0") or "0"
    value = int(digits) if len(digits) <= _MOST_DIGITS else _ENDLESS
    return -value if sign == "-" else value


def harmless(text: str) -> str:
    """With a question mark for each character that a terminal might obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str) -> str:
    """Not more than a person reads."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def quoted(text: str) -> str:
    """In quotes, not too long, and harmless."""
    return repr(shortened(text))
