"""How one worker died, told from what it left behind."""

from __future__ import annotations

import errno
import json
import signal
from typing import Any

import pytest

from phalanx.report.causes import BY_WORD, CAUSES
from phalanx.report.decide import decide
from phalanx.report.diagnose import Diagnosis
from phalanx.report.evidence import MemoryCounters, WorkerEnd
from report_scenes import TRACEBACK, end, error_file, recorded, scene

MIB = 1024 * 1024


def told(worker: WorkerEnd) -> Diagnosis:
    found = decide(scene(worker)).first
    assert found is not None
    return found


def by_kill(before: MemoryCounters | None, after: MemoryCounters | None) -> Diagnosis:
    return told(end(1, signum=signal.SIGKILL, memory_before=before, memory_after=after))


def test_the_words_are_different() -> None:
    assert len(BY_WORD) == len(CAUSES)
    assert all(cause.meaning for cause in CAUSES)


# The error file


@pytest.mark.parametrize(
    ("octets", "headline"),
    [
        (recorded("ValueError: boom"), "ValueError: boom"),
        (error_file("a text of its own"), "a text of its own"),
        (error_file({"message": "TypeError: x"}), "TypeError: x"),
        (error_file({"message": "TypeError: x", "extraInfo": [1]}), "TypeError: x"),
        (error_file({"message": "two\nlines", "extraInfo": {"py_callstack": 3}}), "two"),
        (error_file({"message": None, "extraInfo": {"py_callstack": TRACEBACK}}),
         "ValueError: bad batch"),
        (recorded("ValueError: boom")[:60], "ValueError: boom"),
        (recorded("ValueError: a \\ \"quoted\" \u2713\ttab")[:80],
         "ValueError: a \\ \"quoted\" \u2713      tab"),
        (recorded("ValueError: \x1b[31mred\x1b[0m\x07"), "ValueError: red\\x07"),
        (recorded("ValueError: \ud800 half"), "ValueError: \\ud800 half"),
        (b"\xef\xbb\xbf" + recorded("ValueError: mark"), "ValueError: mark"),
    ],
)  # fmt: skip
def test_what_an_error_file_tells(octets: bytes, headline: str) -> None:
    found = told(end(1, code=1, error_file=octets, stderr="Traceback is elsewhere\n"))

    assert found.headline == headline
    assert (found.cause, found.is_exception) == ("exception", True)


def test_the_gap_of_a_long_error_file_stays_in_its_traceback() -> None:
    whole = recorded("ValueError: boom", TRACEBACK * 2000)
    gap = b"\n... 99 octets left out ...\n"
    found = told(end(1, code=1, error_file=whole[:20_000] + gap + whole[-20_000:]))

    assert found.headline == "ValueError: boom"
    assert found.details[0] == "Traceback (most recent call last):"
    assert found.details[-1] == "ValueError: bad batch"
    assert len(found.details) == 100


@pytest.mark.parametrize(
    "octets",
    [b"", b"{", b"[1, 2]", b"null", b"NaN", b'"text"', b"\0\xff\xfe", b"[" * 60_000,
     b'{"a":' * 9000, b"1" * 5000, b'{"message": {}}', b'{"message": ""}', b'{"message": NaN}',
     b'{"message": [[]]}'],
    ids=lambda octets: repr(octets[:12]),
)  # fmt: skip
def test_an_error_file_that_tells_nothing_leaves_the_word_to_stderr(octets: bytes) -> None:
    found = told(end(1, code=1, error_file=octets, stderr=TRACEBACK))

    assert found.headline == "ValueError: bad batch"


def test_the_error_file_is_believed_before_stderr() -> None:
    found = told(end(1, code=1, error_file=recorded("KeyError: 'x'", ""), stderr=TRACEBACK))

    assert found.headline == "KeyError: 'x'"
    assert found.details == ("KeyError: 'x'",)


# Tracebacks on stderr


@pytest.mark.parametrize(
    ("stderr", "headline", "length"),
    [
        (TRACEBACK, "ValueError: bad batch", 6),
        (TRACEBACK.replace("\n", "\r\n"), "ValueError: bad batch", 6),
        (TRACEBACK[:-1], "ValueError: bad batch", 6),
        ("step 1\rstep 2\n" + TRACEBACK + "\n\n", "ValueError: bad batch", 6),
        (TRACEBACK.replace("ValueError", "\x1b[1;35mValueError\x1b[0m"),
         "ValueError: bad batch", 6),
        ("".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines()),
         "ValueError: bad batch", 6),
        (TRACEBACK + "second line\n", "ValueError: bad batch", 7),
        (TRACEBACK.replace("ValueError: bad batch", "RuntimeError: \n  An attempt"),
         "RuntimeError: An attempt", 7),
        (TRACEBACK.replace("ValueError: bad batch", "AssertionError"), "AssertionError", 6),
        (TRACEBACK.replace("ValueError", "my.pack_age.Öops"), "my.pack_age.Öops: bad batch", 6),
        (TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
         + TRACEBACK.replace("ValueError: bad batch", "OSError: x"), "OSError: x", 15),
        (TRACEBACK.replace("bad batch", "bad\n\nbatch")
         + "\nThe above exception was the direct cause of the following exception:\n\n"
         + TRACEBACK.replace("ValueError: bad batch", "OSError: x"), "OSError: x", 17),
        (TRACEBACK + "Traceback (most recent call last):\n  File \"cut",
         "ValueError: bad batch", 6),
        (TRACEBACK + "Exception ignored in: <function f at 0x7>\n"
         + TRACEBACK.replace("ValueError", "OSError"), "ValueError: bad batch", 6),
        (TRACEBACK + "Exception in thread Thread-1:\n" + TRACEBACK.replace("ValueError", "OSError"),
         "ValueError: bad batch", 6),
        ("Process SpawnProcess-1:\n" + TRACEBACK.replace("ValueError", "OSError") + TRACEBACK,
         "ValueError: bad batch", 6),
        ("Exception in thread Thread-1:\n" + TRACEBACK, "ValueError: bad batch", 6),
        (TRACEBACK + "[W1201 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy\n",
         "ValueError: bad batch", 6),
        (TRACEBACK + "/usr/lib/python3/x.py:2: UserWarning: leaked\n  warnings.warn(\n",
         "ValueError: bad batch", 6),
        (TRACEBACK.partition("\n")[2].partition("\n")[2], "ValueError: bad batch", 5),
        ("  File \"/t/x.py\", line 1\n    def f(\n         ^\nSyntaxError: '(' was never closed\n",
         "SyntaxError: '(' was never closed", 4),
    ],
)  # fmt: skip
def test_the_traceback_that_ended_it(stderr: str, headline: str, length: int) -> None:
    found = told(end(1, code=1, stderr=stderr))

    assert found.headline == headline
    assert len(found.details) == length, found.details
    assert found.has_traceback


@pytest.mark.parametrize(
    "stderr",
    ["", "\n\n", "no traceback at all\n", "Traceback (most recent call last):\n",
     "Traceback (most recent call last):\n  File \"x\", line 1, in f\nnot an exception at all\n",
     "Exception ignored in: <x>\n" + TRACEBACK, "--- Logging error ---\n" + TRACEBACK,
     TRACEBACK + "a line\n" * 30],
)  # fmt: skip
def test_no_traceback_ended_it(stderr: str) -> None:
    found = told(end(1, code=3, stderr=stderr))

    assert (found.cause, found.headline) == ("exit-code", "exited with code 3")
    assert len(found.details) <= 10
    assert not found.has_traceback


def test_an_exception_group_is_one_exception() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "x.py", line 1, in <module>',
        '  |     raise ExceptionGroup("eg", [])',
        "  | ExceptionGroup: eg (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: 1",
        "    +---------------- 2 ----------------",
        "    | KeyError: 'x'",
        "    +------------------------------------",
    ]
    found = told(end(1, code=1, stderr="\n".join([*lines, "bye"])))

    assert found.headline == "ExceptionGroup: eg (2 sub-exceptions)"
    assert found.details == tuple(lines)


# What no restart heals


@pytest.mark.parametrize(
    ("kind", "function", "cause"),
    [
        ("ModuleNotFoundError", "<module>", "import-error"),
        ("ImportError", "<module>", "import-error"),
        ("ImportError", "main", "exception"),
        ("SyntaxError", "<module>", "syntax-error"),
        ("IndentationError", "<module>", "syntax-error"),
        ("SyntaxError", "evaluate", "exception"),
        ("ValueError", "<module>", "exception"),
    ],
)
def test_what_fails_while_the_script_is_loaded_cannot_heal(
    kind: str, function: str, cause: str
) -> None:
    text = TRACEBACK.replace("in main", f"in {function}").replace("ValueError", kind)
    found = told(end(1, code=1, stderr=text))

    assert (found.cause, found.can_heal) == (cause, cause == "exception")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("/usr/bin/python3: No module named nothing", 1),
        ("/usr/bin/python3: can't open file '/x.py': [Errno 2] No such file or directory", 2),
    ],
)
def test_a_script_that_python_does_not_find(line: str, code: int) -> None:
    found = told(end(1, code=code, stderr=line + "\n"))

    assert (found.cause, found.can_heal) == ("import-error", False)
    assert found.headline == f"exited with code {code}: {line.partition(': ')[2]}"


def test_a_usage_error_cannot_heal() -> None:
    text = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rl\n"

    found, other = told(end(1, code=2, stderr=text)), told(end(1, code=1, stderr=text))

    assert (found.cause, found.can_heal) == ("usage", False)
    assert found.headline == "exited with code 2: unrecognized arguments: --rl"
    assert (other.cause, other.can_heal) == ("exit-code", True)


@pytest.mark.parametrize(
    ("number", "cause", "heals"),
    [
        (errno.ENOENT, "cannot-start", False),
        (errno.EACCES, "cannot-start", False),
        (errno.ENOEXEC, "cannot-start", False),
        (errno.E2BIG, "cannot-start", False),
        (errno.EAGAIN, "limit", True),
        (errno.ENOMEM, "limit", True),
        (errno.EMFILE, "limit", True),
    ],
)
def test_what_could_not_be_started_heals_if_a_limit_was_in_the_way(
    number: int, cause: str, heals: bool
) -> None:
    found = told(end(1, errno=number))

    assert (found.cause, found.can_heal) == (cause, heals)
    assert found.headline.startswith("could not be started: ")
    assert found.headline.endswith(": train.py")


# Signals


def test_every_signal_has_its_name() -> None:
    for signum in range(1, 65):
        headline = told(end(1, signum=signum)).headline
        try:
            name = signal.Signals(signum).name
        except ValueError:
            name = f"signal {signum}"
        assert f"was killed by {name}" in headline


def test_sigkill_by_the_kernel_for_want_of_memory() -> None:
    found = by_kill(MemoryCounters(3, 9, 64 * MIB), MemoryCounters(4, 10, 64 * MIB))

    assert found.cause == "oom"
    assert "out of memory" in found.headline
    assert "its limit is 64 MiB" in found.headline


def test_sigkill_while_the_machine_was_out_of_memory() -> None:
    found = by_kill(MemoryCounters(None, 9), MemoryCounters(None, 10))

    assert found.cause == "oom"
    assert "on this machine" in found.headline


def test_sigkill_from_outside_says_that_it_was_neither_phalanx_nor_the_kernel() -> None:
    for counters in (MemoryCounters(3, 9), MemoryCounters(None, 9), MemoryCounters(3, None)):
        found = by_kill(counters, counters)

        assert found.cause == "killed"
        assert "from outside: not by phalanx, not for want of memory" in found.headline


@pytest.mark.parametrize(
    "counters", [(None, None), (MemoryCounters(1, 1), None), (MemoryCounters(), MemoryCounters(1))]
)
def test_without_counters_sigkill_may_have_been_either(counters: Any) -> None:
    found = by_kill(*counters)

    assert found.cause == "killed"
    assert "by the kernel for want of memory, or by" in found.headline


@pytest.mark.parametrize(
    ("size", "free", "cause"),
    [
        (64 * MIB, 0, "shm-full"),
        (64 * MIB, MIB - 1, "shm-full"),
        (1024 * MIB, 10 * MIB, "shm-full"),
        (64 * MIB, 60 * MIB, "crash"),
        (None, None, "crash"),
        (0, 0, "crash"),
    ],
)
def test_sigbus_with_a_full_dev_shm(size: int | None, free: int | None, cause: str) -> None:
    found = told(end(1, signum=signal.SIGBUS, shm_size=size, shm_free=free))

    assert found.cause == cause
    assert "/dev/shm" in found.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("free(): invalid pointer", "free(): invalid pointer"),
        ("python: free(): double free detected in tcache 2", "free(): double free detected in tca"),
        ("double free or corruption (out)", "double free or corruption (out)"),
        ("*** stack smashing detected ***: terminated", "*** stack smashing detected ***"),
        ("a.out: x.c:3: f: Assertion `n > 0' failed.", "Assertion `n > 0' failed."),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  bad device\n",
         "c10::Error: bad device"),
        ("terminate called without an active exception", "terminate called without an active"),
        ("F1201 10:00:00.000000 12 check.cc:9] Check failed: x", "Check failed: x"),
    ],
)  # fmt: skip
def test_the_last_words_of_native_code(text: str, what: str) -> None:
    found = told(end(1, signum=signal.SIGABRT, stderr=f"before\n{text}\nAborted\n"))

    assert found.cause == "abort"
    assert what in found.headline
    assert "before" not in found.details


def test_the_stack_of_faulthandler_is_kept_and_then_no_hint_asks_for_it() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f (most recent call first):\n"
        '  File "x.py", line 3 in f\n  File "x.py", line 9 in <module>\n\n'
        "Extension modules: a (1)\n"
    )
    found, bare = (
        told(end(1, signum=signal.SIGSEGV, stderr=text)),
        told(end(1, signum=signal.SIGSEGV)),
    )

    assert found.headline == bare.headline == "was killed by SIGSEGV (segmentation fault)"
    assert '  File "x.py", line 3 in f' in found.details
    assert (found.hint, "PYTHONFAULTHANDLER" in bare.hint) == ("", True)


def test_a_watchdog_that_aborts_over_a_lost_peer_blames_the_peer() -> None:
    text = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 1] NCCL error: remote process exited or there was a network error\n"
    )

    assert told(end(1, signum=signal.SIGABRT, stderr=text)).blames_peer


# Memory and hints


@pytest.mark.parametrize(
    ("message", "cause", "hint"),
    [
        ("MemoryError", "memory", "smaller batches"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "device-memory", "smaller batches"),
        ("torch.cuda.OutOfMemoryError: HIP out of memory.", "device-memory", "smaller batches"),
        ("RuntimeError: CUDA error: out of memory", "device-memory", "smaller batches"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible",
         "exception", "/dev/shm"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", "exception",
         "less memory"),
        ("OSError: [Errno 28] No space left on device", "exception", "df -h"),
        ("OSError: [Errno 24] Too many open files: 'x'", "exception", "ulimit -n"),
        ("RuntimeError: can't start new thread", "exception", "ulimit -u"),
        ("OSError: [Errno 98] Address already in use", "exception", "--master-port"),
        ("ValueError: x", "exception", ""),
    ],
)  # fmt: skip
def test_what_can_be_done_about_an_exception(message: str, cause: str, hint: str) -> None:
    found = told(end(1, code=1, stderr=TRACEBACK.replace("ValueError: bad batch", message)))

    assert found.cause == cause
    assert hint in found.hint
    assert bool(hint) == bool(found.hint)


def test_a_shells_exit_code_for_a_signal_is_explained() -> None:
    assert "killed by SIGSEGV" in told(end(1, code=139)).hint


def test_the_report_for_programs_is_plain_json_whatever_is_in_it() -> None:
    from phalanx.report.as_json import as_json

    data = as_json(decide(scene(end(1, code=1, stderr=b"\xff\0" + TRACEBACK.encode()))), 1)

    assert json.loads(json.dumps(data, allow_nan=False)) == data
