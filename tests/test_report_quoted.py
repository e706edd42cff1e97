"""Exceptions that tell of another process, and messages that quote a traceback."""

from __future__ import annotations

import pytest

from phalanx.report.as_json import as_json
from phalanx.report.decide import decide
from phalanx.report.diagnose import Diagnosis
from phalanx.report.fit import width_of
from phalanx.report.text import report_lines
from report_scenes import TRACEBACK, end, recorded, scene

HEADER = "Traceback (most recent call last):\n"
FRAMES = "".join(
    f'  File "/opt/torch/fetch.py", line {n}, in fetch_{n}\n    f(x)\n' for n in range(9)
)
#: As torch writes what a Dataset raised in a process of its DataLoader.
IN_LOADER = TRACEBACK.replace(
    "ValueError: bad batch\n",
    "IndexError: Caught IndexError in DataLoader worker process 1.\n"
    f"Original {HEADER}{FRAMES}IndexError: broken image 20\n\n",
)
SPAWNED = TRACEBACK.replace(
    "ValueError: bad batch\n",
    "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
    f"-- Process 3 terminated with the following error:\n{HEADER}{FRAMES}KeyError: 'x'\n\n",
)
#: A traceback that does not begin at the top of a program: it was caught, or made up.
INNER = f'{HEADER}  File "x.py", line 1, in f\n    g()\nOSError: x\n'


def told(stderr: str, code: int = 1, **more: bytes) -> Diagnosis:
    found = decide(scene(end(1, code=code, stderr=stderr, **more))).first
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("stderr", "headline"),
    [
        (IN_LOADER, "IndexError: broken image 20 (in DataLoader worker 1)"),
        (SPAWNED, "KeyError: 'x' (in process 3)"),
        (IN_LOADER.partition("Original")[0],
         "IndexError: Caught IndexError in DataLoader worker process 1."),
    ],
)  # fmt: skip
def test_what_happened_in_another_process_is_the_headline(stderr: str, headline: str) -> None:
    assert told(stderr).headline == headline


def test_the_account_goes_on_to_the_exception_in_the_other_process() -> None:
    found = told(IN_LOADER)

    assert found.details == tuple(IN_LOADER.rstrip().splitlines())


def test_an_error_file_tells_of_another_process_too() -> None:
    message = IN_LOADER[IN_LOADER.index("IndexError") :]
    found = told("", error_file=recorded(message, IN_LOADER))

    assert found.headline == "IndexError: broken image 20 (in DataLoader worker 1)"
    assert found.details[-1] == "IndexError: broken image 20"
    assert not found.blames_peer


def test_a_long_message_and_many_frames_leave_the_exceptions_line_and_the_messages_end() -> None:
    message = "ValueError: many\n" + "".join(f"line {n}\n" for n in range(30))
    verdict = decide(scene(end(1, code=1, stderr=HEADER + FRAMES * 4 + message)))
    lines = report_lines(verdict, 80, 24)

    assert sum(-(-width_of(line) // 80) for line in lines) <= 22
    assert "  ValueError: many" in lines
    assert "  line 29" in lines
    assert sum("lines ..." in line for line in lines) == 2, "each cut is marked"


def test_a_message_of_hundreds_of_lines_keeps_its_beginning_and_its_end_in_the_json() -> None:
    message = "ValueError: many\n" + "".join(f"line {n}\n" for n in range(300))
    verdict = decide(scene(end(1, code=1, stderr=HEADER + FRAMES + message)))
    lines = as_json(verdict, 1)["first_failure"]["traceback"].splitlines()

    assert len(lines) == 100
    assert "ValueError: many" in lines
    assert lines[-1] == "line 299"
    assert sum("lines ..." in line for line in lines) == 1


# Messages that quote


@pytest.mark.parametrize(
    "said",
    ["RuntimeError: the worker said:\n" + INNER,
     "RuntimeError: no\n" + INNER,
     "RuntimeError: the program said:\n" + TRACEBACK,
     "RuntimeError: the program said:\n" + TRACEBACK
     + "\nDuring handling of the above exception, another exception occurred:\n\n" + INNER],
)  # fmt: skip
def test_a_traceback_in_a_message_does_not_take_the_headline(said: str) -> None:
    stderr = TRACEBACK.replace("ValueError: bad batch\n", said)
    found = told(stderr)

    assert found.headline == said.partition("\n")[0].removesuffix(":")
    assert found.details == tuple(stderr.rstrip().splitlines())


@pytest.mark.parametrize(
    "before",
    [INNER, TRACEBACK.replace("bad", "good"), TRACEBACK.replace("bad", "good") + "step 7\n"],
)
def test_an_exception_that_was_printed_before_does_not_take_the_headline(before: str) -> None:
    found = told(before + TRACEBACK)

    assert found.headline == "ValueError: bad batch"
    assert found.details == tuple(TRACEBACK.rstrip().splitlines())
