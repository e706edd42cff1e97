"""The report on the screen: whole blocks as goldens, and what holds for any screen.

PHALANX_REWRITE_GOLDEN=1 writes tests/golden/report/*.txt anew; then read the diff.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hypothesis_profile  # noqa: F401  (sets it)
from phalanx.report.as_json import agent_error_file, as_json
from phalanx.report.decide import decide
from phalanx.report.evidence import MemoryCounters, Observed
from phalanx.report.fit import cut, width_of
from phalanx.report.foreign import clean, cut_middle
from phalanx.report.text import folded, report_lines
from report_scenes import GLOO, TRACEBACK, end, recorded, scene, stopped

#: Lines that are never cut.
TO_COPY = ("hint: ", "logs: ", "report: ", "phalanx: hint: ")
GOLDEN = Path(__file__).parent / "golden" / "report"
KEY_ERROR = TRACEBACK.replace("ValueError: bad batch", "KeyError: 'x'")
LONG = TRACEBACK.replace(
    "    load(batch)\n",
    "".join(
        f'  File "/opt/lib/layers.py", line {n}, in forward_{n}\n    x = f(x)\n' for n in range(60)
    ),
)
NO_OOM = MemoryCounters(0, 0)

SCENES: dict[str, tuple[Observed, int | None, int | None]] = {
    "one_of_four": (
        scene(end(2, code=1, stderr=TRACEBACK), stopped(0), stopped(1), stopped(3)), 100, 30,
    ),
    "forty_alike": (
        scene(*(end(rank, code=1, stderr=KEY_ERROR, at=2.0) for rank in range(40)),
              *(stopped(rank) for rank in range(40, 64)), world_size=64), 100, 30,
    ),
    "several_causes_after_restarts": (
        scene(
            end(5, code=1, error_file=recorded("ValueError: bad batch")),
            *(end(rank, code=1, stderr=KEY_ERROR) for rank in (8, 9, 10, 11)),
            end(1, code=1, stderr=GLOO, at=3.1),
            end(0, signum=9, stopped=True, killed=True, at=33.0),
            *(stopped(rank) for rank in (2, 3, 4)),
            world_size=12, restart_count=2, round=2,
        ), None, None,
    ),
    "sigkill": (
        scene(end(1, signum=9, stderr="step 11\nstep 12\n", memory_before=NO_OOM,
                  memory_after=NO_OOM), stopped(0), world_size=2), 100, 30,
    ),
    "could_not_start": (scene(end(0, errno=errno.EACCES), stopped(1), world_size=2), 100, 30),
    "low_screen": (scene(end(0, code=1, stderr=LONG), stopped(1), world_size=2), 80, 24),
    "narrow_screen": (
        scene(end(0, code=1, stderr=LONG.replace("/opt/lib", "/opt/a/rather/long/way/to/lib")),
              stopped(1), log_dir="/data/ann/experiments/2026/december/run-7_12345678"), 60, 20,
    ),
    "stuck_in_the_kernel": (
        scene(end(0, code=1, stderr=TRACEBACK), stuck=((4711, "nfs_wait"),)), 100, 30,
    ),
    "node_failed": (
        scene(end(0, signum=9), error="the fork server (pid 12) was killed by SIGKILL"), 100, 30,
    ),
    "only_stuck": (scene(stuck=((4711, ""),), logs_kept=False), 100, 30),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_the_report_is_the_golden_one(name: str) -> None:
    seen, width, height = SCENES[name]
    text = "\n".join(report_lines(decide(seen), width, height)) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PHALANX_REWRITE_GOLDEN") == "1":
        path.write_text(text)

    assert text == path.read_text()


def test_every_golden_has_its_scene() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCENES)


@pytest.mark.parametrize("height", [14, 18, 24, 40])
@pytest.mark.parametrize("name", SCENES)
def test_it_fits_the_screen_with_rank_and_exception_on_top(name: str, height: int) -> None:
    seen = SCENES[name][0]
    verdict = decide(seen)
    lines = report_lines(verdict, 80, height)

    assert sum(-(-width_of(line) // 80) for line in lines) <= height - 2
    assert all(width_of(line) <= 80 for line in lines[1:] if not line.startswith(TO_COPY))
    if verdict.first is not None and "could_not_start" not in name:
        assert f"  rank      : {verdict.first.end.failure.rank} (local" in "\n".join(lines[:5])
        if not seen.error and not seen.stuck:
            assert verdict.first.headline[:40] in lines[0]
        if verdict.first.is_exception:
            assert f"  {verdict.first.headline}"[:77] in "\n".join(lines[4:])


SAID = "ValueError: " + " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize("height", [None, 24, 40])
def test_what_the_exception_says_is_wrapped_and_not_cut(height: int | None) -> None:
    """320 characters are four rows of this screen, twice: that leaves the report room enough."""
    stderr = LONG.replace("ValueError: bad batch", SAID)
    lines = report_lines(decide(scene(end(0, code=1, stderr=stderr))), 80, height)

    assert lines[0] == f"phalanx: error: rank 0 failed: {SAID}"
    assert f"  {SAID}" in lines
    if height is not None:
        assert sum(-(-width_of(line) // 80) for line in lines) <= height - 2


def test_a_message_larger_than_the_screen_is_cut_to_it() -> None:
    stderr = LONG.replace("bad batch", "x" * 1900)
    lines = report_lines(decide(scene(end(0, code=1, stderr=stderr))), 80, 24)

    assert sum(-(-width_of(line) // 80) for line in lines) <= 22
    assert lines[0].startswith("phalanx: error: rank 0 failed: ValueError: xxx")
    assert lines[0].endswith("x...")
    assert any(line.startswith("  ValueError: xxx") for line in lines)


def test_lines_for_scripts_are_torchruns() -> None:
    lines = report_lines(decide(scene(end(2, signum=signal.SIGKILL))), 40, 24)

    assert lines[1] == "Root Cause (first observed failure):"
    assert lines[2] == "  rank      : 2 (local_rank: 2)"
    assert lines[3] == "  exitcode  : -9 (pid: 4702)"


def test_where_the_logs_and_the_report_are() -> None:
    verdict = decide(scene(end(2, code=3)))
    gone = decide(scene(end(2, code=3), logs_kept=False))

    assert report_lines(verdict, None, None)[-1] == "logs: /logs/job_12345678"
    assert report_lines(verdict, None, None, logs="/a/2", report_path="/a/failure.json")[-2:] == (
        "logs: /a/2",
        "report: /a/failure.json",
    )
    assert "logs" not in report_lines(gone, None, None)[-1]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), ""), ((3,), "3"), ((1, 0), "0, 1"), ((0, 1, 2), "0-2"), ((0, 1, 2, 4, 5), "0-2, 4, 5"),
     ((-1, 0, 1), "?, 0, 1"), ((*range(32), 33), "0-31, 33")],
)  # fmt: skip
def test_ranks_are_folded(ranks: tuple[int, ...], text: str) -> None:
    assert folded(ranks) == text


def test_a_long_path_loses_its_middle_and_keeps_its_name() -> None:
    line = '  File "/data/ann/experiments/2026/project/layers.py", line 3, in forward'

    assert cut(line, 60) == '  File "/data/ann...6/project/layers.py", line 3, in forward'
    assert "layers.py" in cut(line, 50)
    assert cut("x" * 50, 40) == "x" * 37 + "..."


@given(st.text(max_size=200), st.integers(8, 120))
def test_a_cut_line_fits(text: str, width: int) -> None:
    assert width_of(cut(clean(text), width)) <= width


@given(st.integers(0, 30), st.integers(3, 20), st.integers(1, 5))
def test_a_cut_middle_keeps_both_ends_and_counts_what_is_gone(
    count: int, most: int, last: int
) -> None:
    lines = tuple(f"line {n}" for n in range(count))
    found = cut_middle(lines, most, last)

    assert len(found) == min(count, most)
    if count > most:
        assert found[-1] == lines[-1]
        assert f"  ... {count - most + 1} lines ..." in found


# Whatever workers leave behind

PIECES = st.sampled_from(
    [
        *(TRACEBACK, KEY_ERROR, GLOO, "\x1b[2J", "\x1b]0;x", "\r", "\n", "\t", "\0", "\u202e"),
        "usage: x\n", "  File \"x\", line 1, in f\n",
        "  + Exception Group Traceback (most recent call last):\n",
        "  | ", "Fatal Python error: x\n", "terminate called after throwing an instance of 'x'\n",
        "During handling of the above exception, another exception occurred:\n", "[rank1]: ",
        "Exception in thread T:\n", "a: error: b\n", "free(): x\n", '{"message": "',
        '"py_callstack": "', "\\u00", '"}',
    ]
)  # fmt: skip
OCTETS = st.one_of(
    st.binary(max_size=300),
    st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=20).map(
        lambda parts: "".join(parts).encode(errors="replace")
    ),
    st.builds(recorded, st.text(max_size=40), st.text(max_size=200)),
)
COUNTERS = st.one_of(
    st.none(),
    st.builds(MemoryCounters, *[st.one_of(st.none(), st.integers(0, 3))] * 2),
)
HOW = st.one_of(
    st.fixed_dictionaries({"code": st.integers(1, 255)}),
    st.fixed_dictionaries({"signum": st.integers(1, 64)}),
    st.fixed_dictionaries({"errno": st.integers(1, 133)}),
)


@st.composite
def rounds(draw: st.DrawFn) -> Observed:
    ends = []
    for rank in range(draw(st.integers(0, 5))):
        is_stopped = draw(st.booleans())
        ends.append(
            end(
                rank,
                **draw(HOW),
                at=draw(st.floats(0, 3)),
                stopped=is_stopped,
                killed=is_stopped and draw(st.booleans()),
                stderr=draw(OCTETS),
                error_file=draw(OCTETS),
                memory_before=draw(COUNTERS),
                memory_after=draw(COUNTERS),
                shm_size=draw(st.one_of(st.none(), st.integers(0, 1 << 40))),
                shm_free=draw(st.one_of(st.none(), st.integers(0, 1 << 40))),
            )
        )
    stuck = draw(st.sampled_from([(), ((7, "nfs_wait"),)]))
    error = draw(st.sampled_from(["", "", "the \x1b[2Jnode\nfailed"]))
    return scene(*ends, stuck=stuck, error=error, restart_count=draw(st.integers(0, 2)))


@given(
    rounds(),
    st.one_of(st.none(), st.integers(1, 200)),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_nothing_that_workers_leave_acts_on_a_screen_or_stops_the_report(
    seen: Observed, width: int | None, height: int | None
) -> None:
    verdict = decide(seen)
    lines = report_lines(verdict, width, height)

    assert lines[0].startswith("phalanx: error: ")
    assert all(line.isprintable() for line in lines)
    mistake = verdict.first is not None and verdict.first.end.failure.status.errno is not None
    if not mistake and (verdict.first is None or verdict.first.said_at is None):
        cut = [line for line in lines[1:] if not line.startswith(TO_COPY)]
        assert all(width_of(line) <= max(width or 10_000, 40) for line in cut)
    assert as_json(verdict, 1)["version"] == 1
    assert agent_error_file(verdict)
    first = [verdict.first] if verdict.first else []
    members = len(first) + sum(len(g.ranks) for g in (*verdict.others, *verdict.victims))
    assert members == len(seen.ends), "each end is told once"
    assert bool(verdict.first) == any(each.stopped_by is None for each in seen.ends)


def test_the_largest_evidence_is_told_in_little_time() -> None:
    from time import monotonic

    rough = ["x " * 64_000, "  File \"a\", line 1, in f\n" * 5000,
             "Traceback (most recent call last):\n" * 3000, "\x1b[" * 60_000,
             "\x1b]" * 60_000, '"message": "' * 10_000, ": Assertion `" * 9000,
             "KeyError: x\n" * 10_000, "[" * 120_000]  # fmt: skip
    for text in rough:
        start_s = monotonic()
        seen = scene(*(end(rank, signum=signal.SIGABRT, stderr=text, error_file=text.encode())
                       for rank in range(2)))  # fmt: skip
        report_lines(decide(seen), 80, 24)

        assert monotonic() - start_s < 3.0, text[:40]
