"""The ways to die: a table of programs, how each is ended, and what is to be said of it.

`test_ways.py` runs the table with phalanx. `test_report_of_ways.py` runs the programs alone, where
that can be done, and shows what is told from their evidence.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import PROGRAMS
from phalanx.record import Record

WAYS_DIR = PROGRAMS / "ways"

CANNOT_START = 66
SYSTEM = 71


class Way(Record):
    """One way to die. In all texts `{dir}` is a directory of the test's own, `{ways}` that of the
    programs."""

    name: str
    #: What stands behind phalanx's options: the program and its arguments.
    words: tuple[str, ...]
    #: The first line of the report, without "phalanx: error: ", as a regular expression.
    title: str
    #: What else is found in the report, each a regular expression for a whole line.
    says: tuple[str, ...] = ()
    #: What is not in the report.
    hides: tuple[str, ...] = ()
    #: Fields of `first_failure` in failure.json; None: it never came so far.
    json: dict[str, Any] | None = None
    code: int = 1
    workers: int = 2
    options: tuple[str, ...] = ()
    #: Sent from outside, once every rank has said that it is there, to this rank.
    kill: tuple[int, int] | None = None
    #: Words before the launcher's: another user, a limit.
    prefix: tuple[str, ...] = ()
    #: Makes what is needed in `{dir}`.
    prepare: Callable[[Path], None] | None = None
    needs_root: bool = False
    needs_torch: bool = False
    #: In a control group with so many octets of memory.
    memory_limit: int | None = None
    #: Its evidence tells the same when it is run alone.
    alone: bool = False


def _write(name: str, content: bytes, mode: int) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / name).write_bytes(content)
        (folder / name).chmod(mode)

    return prepare


def _exception(headline: str, **more: Any) -> dict[str, Any]:
    return {
        "cause": "exception",
        "message": headline,
        "exit_code": 1,
        "signal": None,
        "can_heal": True,
        **more,
    }


def _by_signal(cause: str, signum: int) -> dict[str, Any]:
    fields = {"exit_code": None, "signal": signal.Signals(signum).name, "can_heal": True}
    return {"cause": cause, **fields}


TRACEBACK = r"  Traceback \(most recent call last\):"
STACK_HINT = "hint: with PYTHONFAULTHANDLER=1 in the environment Python says where it was"

WAYS: tuple[Way, ...] = (
    # Exceptions
    Way(
        "value_error",
        ("{ways}/value_error.py",),
        r"rank 1 failed: ValueError: bad batch 7",
        says=(TRACEBACK, r"    File \".*value_error\.py\", line \d+, in load",
              "  ValueError: bad batch 7", "stopped because of it: ranks? 0(, 2)?"),
        json=_exception("ValueError: bad batch 7", rank=1, local_rank=1, hint=None),
        workers=3,
        alone=True,
    ),
    Way(
        "all_alike",
        ("{ways}/all_alike.py",),
        r"rank \d failed: KeyError: 'x'",
        says=(TRACEBACK, "  KeyError: 'x'"),
        json=_exception("KeyError: 'x'"),
        workers=4,
        alone=True,
    ),
    Way(
        "chained",
        ("{ways}/chained.py",),
        r"rank \d failed: RuntimeError: cannot go on",
        says=(TRACEBACK, "  KeyError: 'batch'", "  ValueError: no batch",
              "  The above exception was the direct cause of the following exception:",
              "  During handling of the above exception, another exception occurred:",
              "  RuntimeError: cannot go on", "  second line of the message"),
        json=_exception("RuntimeError: cannot go on"),
        alone=True,
    ),
    Way(
        "exception_group",
        ("{ways}/exception_group.py",),
        r"rank \d failed: ExceptionGroup: bad shards \(2 sub-exceptions\)",
        says=(r"    \+ Exception Group Traceback \(most recent call last\):",
              r"      \| ValueError: invalid literal for int\(\) with base 10: 'x1'"),
        json=_exception("ExceptionGroup: bad shards (2 sub-exceptions)"),
        alone=True,
    ),
    Way(
        "record_error",
        ("{ways}/record_error.py",),
        r"rank \d failed: ValueError: told in the error file",
        says=(TRACEBACK, r"    File \".*record_error\.py\", line \d+, in main"),
        json=_exception("ValueError: told in the error file"),
        alone=True,
    ),
    Way(
        "torch_record",
        ("{ways}/torch_record.py",),
        r"rank 0 failed: ValueError: recorded by torch",
        says=(TRACEBACK, r"    File \".*torch_record\.py\", line \d+, in main"),
        json=_exception("ValueError: recorded by torch"),
        workers=1,
        needs_torch=True,
    ),
    Way(
        "run_path",
        ("{ways}/value_error.py",),
        r"rank 1 failed: ValueError: bad batch 7",
        says=(TRACEBACK,),
        json=_exception("ValueError: bad batch 7"),
        options=("--run-path",),
    ),
    Way(
        "rubbish_error_file",
        ("{ways}/rubbish_error_file.py",),
        r"rank \d failed: LookupError: told on stderr",
        says=(TRACEBACK,),
        json=_exception("LookupError: told on stderr"),
        alone=True,
    ),
    Way(
        "error_directory",
        ("{ways}/error_directory.py",),
        r"rank \d failed: LookupError: the error file is a directory",
        json=_exception("LookupError: the error file is a directory"),
        alone=True,
    ),
    Way(
        "warnings_after_the_traceback",
        ("{ways}/warns_after.py",),
        r"rank \d failed: ArithmeticError: the true end",
        says=(TRACEBACK, "  ArithmeticError: the true end"),
        hides=("leaked semaphore", "destroy_process_group", "in a destructor"),
        json=_exception("ArithmeticError: the true end"),
        alone=True,
    ),
    Way(
        "rubbish_on_stderr",
        ("{ways}/rubbish_stderr.py",),
        r"rank \d failed: ValueError: cleared\\x07 \\u202e backwards",
        says=(TRACEBACK,),
        json=_exception("ValueError: cleared\\x07 \\u202e backwards"),
        alone=True,
    ),
    Way(
        "recursion",
        ("{ways}/recursion.py",),
        r"rank \d failed: RecursionError: maximum recursion depth exceeded.*",
        says=(TRACEBACK, r"    \.\.\. \d+ lines \.\.\.", "  RecursionError: maximum recursion .*"),
        json={"cause": "exception", "exit_code": 1},
        alone=True,
    ),
    Way(
        "thread_exit",
        ("{ways}/thread_exit.py",),
        r"rank \d failed: OSError: the thread's disk is gone",
        says=(TRACEBACK,),
        json={"cause": "exception", "exit_code": 5},
        code=5,
        alone=True,
    ),
    Way(
        "memory_error",
        ("{ways}/memory_error.py",),
        r"rank \d failed: MemoryError",
        says=("hint: smaller batches .*",),
        json={"cause": "memory", "can_heal": True},
        alone=True,
    ),
    Way(
        "cuda_memory",
        ("{ways}/cuda_memory.py",),
        r"rank \d failed: torch\.OutOfMemoryError: CUDA out of memory\..*",
        says=("hint: smaller batches need less; .*",),
        json={"cause": "device-memory", "can_heal": True},
        alone=True,
    ),
    Way(
        "peer_lost",
        ("{ways}/peer_lost.py", "{dir}"),
        r"rank 0 failed: ValueError: the true cause",
        says=(TRACEBACK, r"lost (its|their) peer: ranks? .*"),
        json={"cause": "exception", "rank": 0, "signal": "SIGTERM"},
        code=143,
        workers=3,
    ),
    # What no restart heals
    Way(
        "syntax_error",
        ("{dir}/syntax_error.py",),
        r"rank \d failed: SyntaxError: .*",
        says=(r"    File \".*syntax_error\.py\", line 1", "      def broken\\(:", r" +\^+"),
        json={"cause": "syntax-error", "can_heal": False, "exit_code": 1},
        prepare=_write("syntax_error.py", b"def broken(:\n    pass\n", 0o644),
        alone=True,
    ),
    Way(
        "missing_module",
        ("{ways}/missing_module.py",),
        r"rank \d failed: ModuleNotFoundError: No module named 'no_such_module_of_anybody'",
        says=("hint: is it installed for the Python that runs the workers\\? .*",),
        json={"cause": "import-error", "can_heal": False},
        alone=True,
    ),
    Way(
        "argparse_usage",
        ("{ways}/argparse_usage.py", "--epoch=many"),
        r"rank \d exited with code 2: argument --epochs: invalid int value: 'many'",
        says=(r"  usage: train\.py .*",),
        json={"cause": "usage", "can_heal": False, "exit_code": 2},
        code=2,
        alone=True,
    ),
    # Exit codes
    Way(
        "own_exit_code",
        ("{ways}/own_exit_code.py",),
        r"rank \d exited with code 42",
        says=("  its last lines on stderr:", "  no licence left"),
        json={"cause": "exit-code", "exit_code": 42, "traceback": None},
        code=42,
        alone=True,
    ),
    Way(
        "sys_exit_text",
        ("{ways}/sys_exit_text.py",),
        r"rank \d exited with code 1",
        says=("  the data set is empty",),
        json={"cause": "exit-code", "exit_code": 1},
        alone=True,
    ),
    Way(
        "handled_before",
        ("{ways}/handled_before.py",),
        r"rank \d exited with code 9",
        says=("  step 39",),
        hides=("Traceback",),
        json={"cause": "exit-code", "exit_code": 9, "traceback": None},
        code=9,
        alone=True,
    ),
    # Signals
    Way(
        "sigkill_outside",
        ("{ways}/sleeps.py",),
        r"rank 1 was killed by SIGKILL from outside: not by phalanx, not for want .*",
        says=(r"  exitcode  : -9 \(pid: \d+\)", "  step 12 of 100", "hint: look for who kills: .*",
              "stopped because of it: rank 0"),
        json=_by_signal("killed", signal.SIGKILL),
        code=137,
        kill=(signal.SIGKILL, 1),
    ),
    Way(
        "oom",
        ("{ways}/eats_memory.py",),
        r"rank 1 was killed by SIGKILL, out of memory: the kernel killed .*",
        says=("hint: smaller batches .*",),
        json=_by_signal("oom", signal.SIGKILL),
        code=137,
        needs_root=True,
        memory_limit=192 * 1024 * 1024,
    ),
    Way(
        "segfault",
        ("{ways}/segfault.py",),
        r"rank \d was killed by SIGSEGV \(segmentation fault\)( and dumped core)?",
        says=(STACK_HINT,),
        json=_by_signal("crash", signal.SIGSEGV),
        code=139,
        alone=True,
    ),
    Way(
        "segfault_faulthandler",
        ("{ways}/segfault.py", "on"),
        r"rank \d was killed by SIGSEGV \(segmentation fault\)( and dumped core)?",
        says=("  Fatal Python error: Segmentation fault",
              r"  (Current thread|Thread) 0x\w+.* \(most recent call first\):",
              r"    File \".*segfault\.py\", line \d+ in read_nothing"),
        hides=("hint:",),
        json=_by_signal("crash", signal.SIGSEGV),
        code=139,
        alone=True,
    ),
    Way(
        "abort",
        ("{ways}/abort.py",),
        r"rank \d was killed by SIGABRT \(abort\)( and dumped core)?",
        says=("  Fatal Python error: Aborted",),
        json=_by_signal("abort", signal.SIGABRT),
        code=134,
        alone=True,
    ),
    Way(
        "bad_free",
        ("{ways}/bad_free.py",),
        r"rank \d was killed by SIGABRT \(abort\)( and dumped core)?: .*invalid pointer",
        json=_by_signal("abort", signal.SIGABRT),
        code=134,
        alone=True,
    ),
    Way(
        "cpp_terminate",
        ("{ways}/cpp_terminate.py",),
        r"rank \d was killed by SIGABRT \(abort\)( and dumped core)?: "
        "std::runtime_error: the device is lost",
        json=_by_signal("abort", signal.SIGABRT),
        code=134,
        alone=True,
    ),
    Way(
        "bus_error",
        ("{ways}/bus_error.py",),
        r"rank \d was killed by SIGBUS \(bus error: .*\).*",
        says=("hint: often a full /dev/shm, .*",),
        json=_by_signal("crash", signal.SIGBUS),
        code=135,
        alone=True,
    ),
    Way(
        "shm_full",
        ("{ways}/shm_full.py",),
        r"rank \d was killed by SIGBUS: /dev/shm is full \(0 octets of 1 MiB free\)",
        says=("hint: make /dev/shm larger .*",),
        json=_by_signal("shm-full", signal.SIGBUS),
        code=135,
        workers=1,
        prefix=(
            *("unshare", "--mount", "sh", "-c"),
            *('mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"),
        ),
        needs_root=True,
    ),
    *(
        Way(
            f"itself_{name}",
            ("{ways}/signals_itself.py", name),
            rf"rank \d was killed by {name} \({meaning}.*\).*",
            json=_by_signal(cause, getattr(signal, name)),
            code=128 + getattr(signal, name),
            alone=True,
        )
        for name, meaning, cause in (
            ("SIGFPE", "arithmetic error", "crash"),
            ("SIGILL", "illegal instruction", "crash"),
            ("SIGTERM", "termination", "signal"),
            ("SIGPIPE", "nobody reads", "signal"),
            ("SIGUSR1", "user signal 1", "signal"),
        )
    ),
    Way(
        "interrupted",
        ("{ways}/interrupted.py",),
        r"rank \d was killed by SIGINT \(interrupt\)",
        says=("  KeyboardInterrupt",),
        json=_by_signal("interrupt", signal.SIGINT),
        code=130,
        alone=True,
    ),
    # Stopping
    Way(
        "killed_at_timeout",
        ("{ways}/ignores_stop.py", "{dir}"),
        r"rank 1 failed: RuntimeError: only rank 1 fails",
        says=("killed at the end of the shutdown timeout: ranks 0, 2",),
        json=_exception("RuntimeError: only rank 1 fails", rank=1),
        workers=3,
        options=("--shutdown-timeout=1",),
    ),
    # What never runs
    Way("no_such_file", ("{dir}/not_there.py",), ".*not_there.py.*", code=CANNOT_START),
    Way(
        "no_permission",
        ("{dir}/plain",),
        ".*plain.*",
        code=CANNOT_START,
        options=("--no-python",),
        prepare=_write("plain", b"#!/bin/sh\n", 0o644),
    ),
    Way(
        "bad_format",
        ("{dir}/odd",),
        r"rank \d could not be started: Exec format error: .*odd",
        says=("phalanx: hint: it is no program of this machine, .*",),
        json={"cause": "cannot-start", "can_heal": False, "exit_code": None, "signal": None},
        code=CANNOT_START,
        options=("--no-python",),
        prepare=_write("odd", b"\x7fELF but no more", 0o755),
    ),
    Way(
        "gone_at_the_restart",
        ("{dir}/leaves",),
        r"rank \d could not be started: No such file or directory: .*leaves \(after 1 restart\)",
        json={"cause": "cannot-start", "can_heal": False},
        code=CANNOT_START,
        options=("--no-python", "--max-restarts=1"),
        workers=1,
        prepare=_write("leaves", b'#!/bin/sh\nrm "$0"\nexit 3\n', 0o755),
    ),
    Way(
        "process_limit",
        ("{ways}/sleeps.py",),
        r"rank \d could not be started: Resource temporarily unavailable: .*sleeps.py",
        says=("phalanx: hint: a process limit is reached: .*",),
        code=SYSTEM,
        workers=4,
        prefix=(
            *("setpriv", "--reuid=65123", "--regid=65123", "--clear-groups"),
            *("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"),
            *("prlimit", "--nproc=4:4"),
        ),
        needs_root=True,
    ),
)  # fmt: skip
