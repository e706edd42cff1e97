"""What is left behind in files at the end of a job, and what is said about it on stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.log_paths import LogPaths
from phalanx.cli import failure
from phalanx.outcome import ExitStatus, Failure, Outcome, OutcomeKind
from phalanx.report.as_json import agent_error_file, as_json
from phalanx.report.decide import Verdict, decide
from phalanx.say import flush, say, say_block
from report_scenes import GLOO, TRACEBACK, end, error_file, recorded, scene, stopped


class Screen:
    """What `tell` says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(f"phalanx: {text}")

    def say_block(self, lines: tuple[str, ...]) -> None:
        self.lines += lines


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    seen = Screen()
    monkeypatch.setattr(failure, "say", seen.say)
    monkeypatch.setattr(failure, "say_block", seen.say_block)
    return seen


def logs(folder: Path) -> LogPaths:
    return LogPaths.create(str(folder), "run", str(folder))


def verdict_on(paths: LogPaths, *ends: Any, **more: Any) -> Verdict:
    return decide(scene(*ends, log_dir=paths.job_dir, logs_kept=paths.chosen, **more))


def failed(verdict: Verdict, *, seen_first: int = 0) -> Outcome:
    ends = verdict.observed.ends
    return Outcome(OutcomeKind.FAILED, (ends[seen_first].failure,))


def test_the_report_for_programs_lies_in_the_jobs_directory(tmp_path: Path, screen: Screen) -> None:
    paths = logs(tmp_path)
    paths.start_attempt(0, 0, 4)
    verdict = verdict_on(
        paths, end(2, code=7, stderr=TRACEBACK, at=1.23456), stopped(0), stopped(1)
    )

    code = failure.tell(failed(verdict), verdict, paths, {})
    data = json.loads(Path(f"{paths.job_dir}/failure.json").read_text())

    assert code == 7
    assert data == as_json(verdict, 7)
    assert screen.lines[0] == "phalanx: error: rank 2 failed: ValueError: bad batch"
    assert screen.lines[-2:] == [
        f"logs: {paths.job_dir}/attempt_0/2",
        f"report: {paths.job_dir}/failure.json",
    ]
    assert [name for name in os.listdir(paths.job_dir or "") if "tmp" in name] == []


def test_the_fields_of_the_report_for_programs() -> None:
    seen = scene(
        end(2, code=1, stderr=TRACEBACK, at=1.23456),
        end(3, code=1, stderr=TRACEBACK),
        end(1, code=1, stderr=GLOO, at=1.3),
        stopped(0),
        restart_count=1,
        round=4,
        log_dir="/logs",
    )

    assert as_json(decide(seen), 1) == {
        "version": 1,
        "kind": "failed",
        "run_id": "run-7",
        "host": "node1",
        "round": 4,
        "restart_count": 1,
        "max_restarts": 3,
        "world_size": 4,
        "exit_code": 1,
        "first_failure": {
            "rank": 2,
            "local_rank": 2,
            "pid": 4702,
            "after_s": 1.235,
            "cause": "exception",
            "message": "ValueError: bad batch",
            "exit_code": 1,
            "signal": None,
            "traceback": TRACEBACK.rstrip(),
            "last_lines": None,
            "hint": None,
            "can_heal": True,
        },
        "others": [
            {"ranks": [3], "cause": "exception", "message": "ValueError: bad batch",
             "exit_code": 1, "signal": None, "like_first": True},
        ],
        "victims": [
            {"ranks": [1], "cause": "lost-peer", "message": GLOO.splitlines()[-1],
             "exit_code": 1, "signal": None, "like_first": False},
            {"ranks": [0], "cause": "stopped", "message": "was killed by SIGTERM (termination)",
             "exit_code": None, "signal": "SIGTERM", "like_first": False},
        ],
        "stuck": [],
        "error": None,
        "log_dir": "/logs",
    }  # fmt: skip


def test_the_kind_is_the_outcomes() -> None:
    def kind(**more: Any) -> object:
        return as_json(decide(scene(**more)), 1)["kind"]

    assert kind(stuck=((7, "x"),)) == "unfit"
    assert kind(error="lost") == "node failed"


def test_the_exit_code_is_that_of_the_first_failure_and_not_of_the_first_seen(
    tmp_path: Path, screen: Screen
) -> None:
    paths = logs(tmp_path)
    verdict = verdict_on(paths, end(0, code=9, stderr=GLOO, at=1.0), end(1, signum=11, at=1.5))

    assert failure.tell(failed(verdict), verdict, paths, {}) == 128 + 11


def test_a_temporary_directory_goes_when_nothing_is_in_it(tmp_path: Path, screen: Screen) -> None:
    paths = LogPaths.create(None, "run", str(tmp_path))
    paths.start_attempt(0, 0, 1)
    verdict = verdict_on(paths, end(0, code=3))

    assert failure.tell(failed(verdict), verdict, paths, {}) == 3
    assert [*tmp_path.iterdir()] == []
    assert not any("logs:" in line or "report:" in line for line in screen.lines)


def test_a_temporary_directory_stays_with_what_the_worker_left(
    tmp_path: Path, screen: Screen
) -> None:
    paths = LogPaths.create(None, "run", str(tmp_path))
    attempt = paths.start_attempt(0, 0, 2)
    Path(attempt.error_files[1]).write_bytes(b"x")
    verdict = verdict_on(paths, end(1, code=3))
    failure.tell(failed(verdict), verdict, paths, {})

    assert screen.lines[-1] == f"logs: {attempt.workers[1]}"
    assert Path(attempt.error_files[1]).read_bytes() == b"x"


def test_the_logs_of_a_further_round_with_the_same_restart_count(
    tmp_path: Path, screen: Screen
) -> None:
    paths = logs(tmp_path)
    paths.start_attempt(0, 0, 1)
    paths.start_attempt(0, 3, 1)
    verdict = verdict_on(paths, end(0, code=3), round=3)
    failure.tell(failed(verdict), verdict, paths, {})

    assert f"logs: {paths.job_dir}/attempt_0_round_3/0" in screen.lines


def test_a_job_without_files_has_a_report_on_the_screen(screen: Screen) -> None:
    paths = LogPaths(None, None)
    verdict = verdict_on(paths, end(0, code=3))

    assert failure.tell(failed(verdict), verdict, paths, {}) == 3
    assert screen.lines[0] == "phalanx: error: rank 0 exited with code 3"


def test_a_stop_on_request_is_one_line_even_with_failures(tmp_path: Path, screen: Screen) -> None:
    paths = logs(tmp_path)
    verdict = verdict_on(paths, end(0, code=3), stopped(1))
    outcome = Outcome(OutcomeKind.STOPPED, (verdict.observed.ends[0].failure,), signum=15)

    assert failure.tell(outcome, verdict, paths, {}) == 120
    assert screen.lines == ["phalanx: stopped on request (SIGTERM)"]


def test_a_lost_service_is_told_and_not_its_victims(tmp_path: Path, screen: Screen) -> None:
    paths = logs(tmp_path)
    verdict = verdict_on(paths, stopped(0), stopped(1))
    service = Failure("n", "node1", 0, None, None, 7, ExitStatus(signal=9), "the store")
    outcome = Outcome(OutcomeKind.FAILED, (service,))

    assert failure.tell(outcome, verdict, paths, {}) == 70
    assert screen.lines[0] == "phalanx: error: the store was killed by SIGKILL"


def test_a_report_that_cannot_be_written_is_one_line_and_no_more(
    tmp_path: Path, screen: Screen
) -> None:
    paths = logs(tmp_path)
    verdict = verdict_on(paths, end(0, code=3))
    os.rmdir(paths.job_dir or "")

    assert failure.tell(failed(verdict), verdict, paths, {}) == 3
    assert screen.lines[0] == (
        f"phalanx: {paths.job_dir}/failure.json cannot be written: No such file or directory"
    )
    assert screen.lines[1] == "phalanx: error: rank 0 exited with code 3"
    assert "report:" not in screen.lines[-1]


def test_a_block_is_printed_whole_by_a_slow_reader() -> None:
    """A full pipe takes it in pieces, and what is said meanwhile comes after."""
    read_end, write_end = os.pipe()
    stderr = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    lines = tuple(f"line {number} " + "x" * 500 for number in range(300))
    try:
        say_block(lines)
        say("after it")
        found = b""
        while not found.endswith(b"after it\n"):
            found += os.read(read_end, 65536)
            flush()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(read_end)

    assert found.decode().splitlines() == [*lines, "phalanx: after it"]


# The agent's own error file


def test_the_agents_error_file_is_the_workers_with_its_exit_code() -> None:
    own = {
        "message": "KeyError: 'x'",
        "extraInfo": {"py_callstack": "s", "timestamp": "17"},
        "a": 1,
    }
    verdict = decide(scene(end(0, code=3, error_file=error_file(own))))
    by_signal = decide(scene(end(0, signum=6, error_file=error_file(own))))
    text = decide(scene(end(0, code=3, error_file=error_file("text"))))

    assert agent_error_file(verdict) == {"message": {**own, "errorCode": 3}}
    assert agent_error_file(by_signal)["message"]["errorCode"] == -6
    assert agent_error_file(text) == {"message": "text"}


def test_without_the_workers_what_is_known_takes_its_place() -> None:
    verdict = decide(scene(end(0, code=3, stderr=TRACEBACK, error_file=b"rubbish")))

    assert agent_error_file(verdict, 1796126273) == {
        "message": {
            "message": "ValueError: bad batch",
            "extraInfo": {"py_callstack": TRACEBACK.rstrip(), "timestamp": "1796126273"},
            "errorCode": 3,
        }
    }


def write_error_file(tmp_path: Path, path: Path | str, code: int = 3) -> None:
    paths = logs(tmp_path / "logs")
    verdict = verdict_on(paths, end(0, code=code, error_file=recorded("ValueError: boom")))
    environ = {"TORCHELASTIC_ERROR_FILE": str(path)}
    assert failure.tell(failed(verdict), verdict, paths, environ) == code


def test_the_agents_error_file_takes_the_place_of_an_older_one(
    tmp_path: Path, screen: Screen
) -> None:
    path = tmp_path / "reply.json"
    path.write_text("old")
    write_error_file(tmp_path, path)

    assert json.loads(path.read_text())["message"]["errorCode"] == 3
    assert sorted(os.listdir(tmp_path)) == ["logs", "reply.json"]


def test_an_error_file_in_a_folder_that_takes_no_other_is_written_in_place(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /dev/termination-log of Kubernetes, which is mounted."""
    path = tmp_path / "reply.json"
    path.write_text("old and long" * 1000)

    def refused(_from: str, to: str) -> None:
        raise OSError(16, "Device or resource busy", to)

    with monkeypatch.context() as patch:
        patch.setattr(failure.os, "replace", refused)
        write_error_file(tmp_path, path)

    assert json.loads(path.read_text())["message"]["errorCode"] == 3
    assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []


@pytest.mark.parametrize("kind", ["folder", "missing/file", "fifo"])
def test_an_error_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, screen: Screen, kind: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    write_error_file(tmp_path, tmp_path / kind)

    said = [line for line in screen.lines if "TORCHELASTIC_ERROR_FILE" in line]
    assert len(said) == 1
    assert f"{tmp_path / kind} cannot be written: " in said[0]


def test_an_error_file_that_is_a_device_is_not_replaced(tmp_path: Path, screen: Screen) -> None:
    write_error_file(tmp_path, os.devnull)

    assert not Path(os.devnull).is_file()
