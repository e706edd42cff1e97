"""What each signal to phalanx does: the table of the docs, which the tests go through.

Nothing at run time reads it. What happens is decided in `agent.signal_intake` (which signals are
taken in), `rendezvous.member` (what a second one is) and `agent.job_control` (Ctrl-Z).
"""

from __future__ import annotations

from phalanx.record import Record

__all__ = ["SIGNALS", "SignalRow"]


class SignalRow(Record):
    """One row. `exit_code` is a phrase: what phalanx exits with because of the signal."""

    signal: str
    what_happens: str
    exit_code: str


_AS_TERM = "as SIGTERM, but the workers get "
_GOES_ON = "the job goes on"

SIGNALS: tuple[SignalRow, ...] = (
    SignalRow(
        "SIGINT (Ctrl-C)",
        "the job is stopped: workers get SIGINT, and the time of `--shutdown-timeout` to save; "
        "a failure with no restart left that came before it is still what is reported",
        "120",
    ),
    SignalRow(
        "SIGINT twice",
        "what is left is killed at once; two within 0.2 s are one",
        "120",
    ),
    SignalRow(
        "SIGTERM", "as SIGINT, but the workers get SIGTERM; a second one changes nothing", "120"
    ),
    SignalRow("SIGHUP", _AS_TERM + "SIGHUP: the terminal is gone", "120"),
    SignalRow("SIGHUP under `nohup`", "ignored, by the workers too", _GOES_ON),
    SignalRow("SIGQUIT (Ctrl-\\)", _AS_TERM + "SIGQUIT, which has a program dump core", "120"),
    SignalRow("SIGUSR1, SIGUSR2", "handed on to every worker, and nothing more", _GOES_ON),
    SignalRow(
        "SIGTSTP (Ctrl-Z)",
        "the whole job stands still until SIGCONT; one that is being stopped goes on with that",
        _GOES_ON,
    ),
    SignalRow("SIGCONT", "what stands still goes on (`fg`, `bg`)", _GOES_ON),
    SignalRow("SIGWINCH", "terminals of workers get the new size", _GOES_ON),
    SignalRow(
        "SIGKILL",
        "cannot be handled: all that the job started is killed within 2 s",
        "137, as a shell sees it",
    ),
)
