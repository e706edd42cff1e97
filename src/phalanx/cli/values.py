"""PURE: numbers from settings, and the error that says which setting is wrong and how."""

from __future__ import annotations

from phalanx.cli.options import OPTIONS
from phalanx.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.cli.parse import CommandLine, Setting

__all__ = ["bad", "choice", "named", "number", "seconds", "whole_number"]


def whole_number(
    line: CommandLine, name: str, *, at_least: int, at_most: int | None = None, instead: str = ""
) -> int:
    """The whole number of an option. Raises UsageError; `instead`: which words would do as well."""
    setting = line.settings[name]
    try:
        value = int(setting.text)
    except ValueError:
        kind = "a whole number" + (f", {instead}" if instead else "")
        raise bad(setting, name, kind) from None
    if value < at_least:
        raise bad(setting, name, f"at least {at_least}")
    if at_most is not None and value > at_most:
        raise bad(setting, name, f"at most {at_most}")
    return value


def number(setting: Setting) -> float | None:
    """The number it is, or None."""
    try:
        return float(setting.text)
    except ValueError:
        return None


def seconds(line: CommandLine, name: str, *, at_most: int) -> float:
    """The seconds of an option, 0 or more; fractions will do. Raises UsageError."""
    setting = line.settings[name]
    value = number(setting)
    if value is None or not value >= 0:
        raise bad(setting, name, "a number of seconds, 0 or more")
    if value > at_most:
        raise bad(setting, name, f"at most {at_most} seconds")
    return value


def choice(line: CommandLine, name: str) -> str | None:
    """The word of an option that has a few; None if it is not set. Raises UsageError."""
    setting = line.settings.get(name)
    if setting is None:
        return None
    words = next(option.choices for option in OPTIONS if option.name == name)
    if setting.text not in words:
        wanted = " or ".join(words) if len(words) == 2 else "one of " + ", ".join(words)
        raise bad(setting, name, wanted)
    return setting.text


def bad(setting: Setting, name: str, wanted: str, example: str = "") -> UsageError:
    """What to raise for a value. `example` is one that would do, or any other advice."""
    hint = f"for instance {example}" if example.startswith("--") else example
    return UsageError(
        f"{named(setting, name)} is {setting.text!r}, but must be {wanted}",
        hint or f"`phalanx --help` describes --{name}",
    )


def named(setting: Setting, name: str) -> str:
    """The option or variable as the user wrote it."""
    return setting.source or f"--{name}"
