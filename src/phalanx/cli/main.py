"""The command: parse, check, run, say how it ended. The only place that prints an error and exits.

Order matters for speed. The fork server is forked as soon as there is anything to run, from a
process that has imported almost nothing, and gets itself ready while the rest is imported and
checked here. It starts nothing by itself: if something is wrong it just leaves again.
"""

from __future__ import annotations

import os
import signal
import sys

from phalanx.errors import ExitCode, PhalanxError, StartError, UsageError
from phalanx.say import finish, printable, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from phalanx.agent.server_process import ServerProcess
    from phalanx.cli.parse import CommandLine
    from phalanx.cli.spec import Plan
    from phalanx.devices.machine import Machine
    from phalanx.workers.process import StartState

__all__ = ["main", "run"]


def main(*, old_form: bool = False) -> NoReturn:
    """Entry point of the `phalanx` command. Leaves without the interpreter's own clean-up.

    `old_form`: as `python -m phalanx.launch`.
    """
    code = 70
    try:
        mask = _hold_back_stop_signals()
        _open_standard_streams()
        code = run(sys.argv[1:], mask, old_form=old_form)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        say("internal error; please report it with the lines below\n" + traceback.format_exc())
    finally:
        finish()
        os._exit(code)


def _hold_back_stop_signals() -> frozenset[int]:
    """A signal of the first instants waits until the agent has handlers; returns the mask before.

    PID 1 would lose it, having no default actions; others would die of it with an exit code that
    says nothing, or lose it in an import (Python drops a KeyboardInterrupt in a callback). SIGTTOU
    is held back so that our lines are written from the background, whatever `stty tostop` says.
    """
    stopping = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    held = (*stopping, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTOU)
    return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, held))


def _open_standard_streams() -> None:
    """Have descriptors 0, 1 and 2, whatever phalanx was started with.

    With one of them closed, a pipe or socket of ours would get its number, and what is printed
    would go into that.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def run(words: Sequence[str], mask: frozenset[int] = frozenset(), *, old_form: bool = False) -> int:
    """Run one command line; its exit code. Prints what is wrong, and a hint.

    `mask`: the signals that were blocked when phalanx was started; workers get that mask.
    """
    from phalanx.cli.parse import parse

    try:
        line = parse(words, os.environ, old_form=old_form)
        if line.flag("help"):
            return _print_help(old_form=old_form)
        if line.flag("version"):
            return _print_version()
        if line.flag("dry-run"):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing will be there to clear up
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return _dry_run(line)
        if line.flag("json"):
            raise UsageError("--json goes with --dry-run", "give both, or neither")
        return _launch(line, mask)
    except PhalanxError as error:
        stopped = error.exit_code == ExitCode.STOPPED
        message = printable(str(error))
        say(message if stopped else f"error: {message}")
        if error.hint:
            say(f"hint: {printable(error.hint)}")
        return error.exit_code


def _launch(line: CommandLine, mask: frozenset[int]) -> int:
    from phalanx.agent.server_process import ServerProcess
    from phalanx.workers.process import StartState

    _check_proc()
    start_state = StartState(mask)
    try:
        server = ServerProcess.start(start_state)
    except OSError as error:
        from phalanx.report.words import LIMITS

        raise StartError(
            f"the fork server cannot be started: {error.strerror}",
            LIMITS.get(error.errno or 0, "see what the system's log says (dmesg)"),
            exit_code=ExitCode.SYSTEM,
        ) from None
    try:
        return _launch_through(server, start_state, line)
    finally:
        server.leave()


def _check_proc() -> None:
    from phalanx.workers.process import proc_is_ours

    if not proc_is_ours():
        raise StartError(
            "/proc is missing here, or belongs to another pid namespace",
            "mount it: unshare --mount-proc ..., or mount -t proc proc /proc",
            exit_code=ExitCode.UNAVAILABLE,
        )


def _launch_through(server: ServerProcess, start_state: StartState, line: CommandLine) -> int:
    from phalanx.agent.agent import Agent
    from phalanx.agent.log_paths import LogPaths
    from phalanx.cli.failure import tell

    plan = _plan(line, _Machine(), _fresh_id)
    if plan.spec.console.tty_rank is not None:
        _check_terminal()
    paths = LogPaths.create(plan.spec.log_dir, plan.spec.run_id, _temporary_root())
    for note in plan.notes:
        say(printable(note))
    try:
        agent = Agent(plan.spec, server, start_state, paths, say, detail=_wants_detail())
        outcome = agent.run()
    except PhalanxError:
        paths.clean_up()
        raise
    return tell(outcome, agent.verdict, paths, os.environ)


def _check_terminal() -> None:
    """For --tty: is there one to give away, and is it ours at the moment?"""
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError(
            "--tty needs a terminal as stdin and stdout", "run it in one, or leave --tty out"
        )
    try:
        in_front = os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return  # another session's: nobody to share it with
    if not in_front:
        raise UsageError("--tty cannot have the terminal in the background", "leave out the &")


def _plan(line: CommandLine, machine: _Machine, fresh_id: Callable[[], str]) -> Plan:
    """What to run, with all the checks that can be made before anything is started."""
    from phalanx.cli.spec import build
    from phalanx.workers.command import check_command
    from phalanx.workers.environment import check_virtual_devices

    plan = build(
        line, os.environ, executable=sys.executable, machine=machine.look, fresh_id=fresh_id
    )
    check_command(plan.spec)
    check_virtual_devices(plan.spec, os.environ)
    return plan


def _dry_run(line: CommandLine) -> int:
    """Print what would be started."""
    from phalanx.cli.dry_run import MADE_UP_ID, Facts, Source, as_text, describe

    _check_proc()
    machine = _Machine()
    plan = _plan(line, machine, lambda: MADE_UP_ID)
    log_dir = plan.spec.log_dir
    here = machine.look()
    devices = here.devices_for_display(one_device_each=plan.spec.virtual_local_rank)
    facts = Facts(
        host=os.uname().nodename,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        devices=tuple(device.words for device in devices),
        readings=tuple(Source(row.what, row.value, row.source) for row in here.readings),
        log_root={
            None: os.path.join(_temporary_root(), "phalanx_????????"),
            os.devnull: None,
        }.get(log_dir, os.path.abspath(log_dir or "")),
    )
    for note in plan.notes:
        say(printable(note))
    description = describe(plan, line, os.environ, facts)
    if not line.flag("json"):
        return _print(as_text(description))
    import json

    return _print(json.dumps(description, indent=2) + "\n")


class _Machine:
    """This machine, looked at when something is asked about it: that costs time and imports."""

    def __init__(self) -> None:
        self._machine: Machine | None = None

    def look(self) -> Machine:
        if self._machine is None:
            from phalanx.devices.machine import Machine

            python = os.environ.get("PYTHON_EXEC") or sys.executable
            self._machine = Machine(os.environ, python)
        return self._machine


def _wants_detail() -> bool:
    """torchrun's LOGLEVEL: INFO and below tell what is done as well as what goes wrong."""
    return os.environ.get("LOGLEVEL", "").upper() in ("INFO", "DEBUG", "NOTSET")


def _fresh_id() -> str:
    """A run id in the form of a random UUID, as torchrun makes up; the uuid module costs 6 ms."""
    octets = bytearray(os.urandom(16))
    octets[6] = octets[6] & 0x0F | 0x40
    octets[8] = octets[8] & 0x3F | 0x80
    digits = octets.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _temporary_root() -> str:
    """The first that can be written of those that Python's tempfile looks at, else $TMPDIR."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    folders = [os.path.abspath(folder) for folder in [*named, "/tmp", "/var/tmp"] if folder]
    return next((f for f in folders if os.access(f, os.W_OK | os.X_OK)), folders[0])


def _print_help(*, old_form: bool) -> int:
    from phalanx.cli.help import help_text

    try:
        width = os.get_terminal_size(1).columns
    except OSError:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns[:4]) if columns.isascii() and columns.isdigit() else 80
    return _print(help_text(min(width, 110), old_form=old_form))


def _print_version() -> int:
    from phalanx import __version__

    return _print(f"phalanx {__version__}\n")


def _print(text: str) -> int:
    """To stdout. A reader that has seen enough (`| head`) is no error."""
    rest = text.encode(errors="surrogateescape")
    try:
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:  # somebody has made it so
                import select

                select.select((), (1,), ())
    except BrokenPipeError:
        pass
    except OSError as error:
        raise StartError(
            f"stdout cannot be written: {error.strerror}",
            "is the disk full?",
            exit_code=ExitCode.CANNOT_CREATE,
        ) from None
    return 0
