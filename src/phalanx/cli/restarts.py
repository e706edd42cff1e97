"""PURE: from settings to the rules of restarts."""

from __future__ import annotations

from phalanx.cli.values import bad, choice, seconds, whole_number
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.cli.parse import CommandLine, Setting

__all__ = ["RestartRules", "restart_rules"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_HINT = "s, m, h and d are seconds, minutes, hours and days: --max-restarts=3/1h"
#: A longer window holds the whole life of any job; what is longer is a slip.
_LONGEST_WINDOW_S = 10 * 365 * 86400
#: Longer waits than eleven days are slips of the keyboard.
_LONGEST_WAIT_S = 1_000_000


class RestartRules(Record):
    """The fields of `JobSpec` of these names."""

    max_restarts: int
    restart_window_s: float | None
    restart_on_always: bool
    max_restart_delay_s: float
    failure_grace_s: float


def restart_rules(line: CommandLine) -> RestartRules:
    """How often, for what, how soon. Raises UsageError."""
    budget, window_s = _budget(line)
    return RestartRules(
        max_restarts=budget,
        restart_window_s=window_s,
        restart_on_always=choice(line, "restart-on") == "always",
        max_restart_delay_s=seconds(line, "max-restart-delay", at_most=_LONGEST_WAIT_S),
        failure_grace_s=seconds(line, "failure-grace", at_most=_LONGEST_WAIT_S),
    )


def _budget(line: CommandLine) -> tuple[int, float | None]:
    """`N`, or `N/TIME` with the time in seconds."""
    setting = line.settings["max-restarts"]
    number, slash, duration = setting.text.partition("/")
    if not slash:
        return whole_number(line, "max-restarts", at_least=0, instead="or N/TIME"), None
    if not _is_number(number):
        raise bad(setting, "max-restarts", "a whole number before the /", "--max-restarts=3/1h")
    return int(number), _window_s(setting, duration.strip())


def _window_s(setting: Setting, duration: str) -> float:
    count, unit = duration[:-1], duration[-1:]
    if unit not in _UNITS or not _is_number(count):
        raise bad(setting, "max-restarts", "a whole number and a unit after the /", _UNITS_HINT)
    window_s = int(count) * _UNITS[unit]
    if not 0 < window_s <= _LONGEST_WINDOW_S:
        raise bad(setting, "max-restarts", "for 1 s or longer, and at most 3650d", _UNITS_HINT)
    return float(window_s)


def _is_number(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and len(text) < 10
