"""A pytest plugin: a skipped test is a failure, unless a list says that this one may be skipped.

A test that silently does not run protects nothing. So `allowed_skips.txt` names the tests that may
be skipped on a developer's machine, each with the reason; any other skip fails the run. Where
everything is installed (CI=true) nothing may be skipped at all. Expected failures are not skips.

A line of the list is `PATTERN -- REASON`; in the pattern `*` stands for anything. Empty lines and
lines that begin with `#` are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["AllowedSkip", "SkipCheck", "read_allowed"]


@dataclass(frozen=True)
class AllowedSkip:
    """One line of the list."""

    pattern: str
    reason: str

    def matches(self, node_id: str) -> bool:
        parts = map(re.escape, self.pattern.split("*"))
        return re.fullmatch(".*".join(parts), node_id) is not None


def read_allowed(path: Path) -> list[AllowedSkip]:
    """Read the list. A line without a reason is a UsageError, which ends the run."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, mark, reason = line.partition(" -- ")
        if not mark or not pattern.strip() or not reason.strip():
            raise pytest.UsageError(f"{path}:{number}: not `PATTERN -- REASON`: {line!r}")
        found.append(AllowedSkip(pattern.strip(), reason.strip()))
    return found


class SkipCheck:
    """Collects the skips of a run; at the end it prints their number and fails what must fail."""

    def __init__(self, allowed: Sequence[AllowedSkip], *, none_allowed: bool) -> None:
        self._allowed = allowed
        self._none_allowed = none_allowed
        #: (node id, why pytest was told to skip it), in the order in which they came.
        self._skipped: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append((report.nodeid, _why(report.longrepr)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped.append((report.nodeid, _why(report.longrepr)))

    def forbidden(self) -> list[tuple[str, str]]:
        """The skips that fail this run."""
        return [
            (node_id, why)
            for node_id, why in self._skipped
            if self._none_allowed or not any(row.matches(node_id) for row in self._allowed)
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.forbidden() and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        forbidden = self.forbidden()
        terminalreporter.section("skip check")
        terminalreporter.line(f"skipped: {len(self._skipped)}, not allowed: {len(forbidden)}")
        rule = "CI is set" if self._none_allowed else "not in tests/allowed_skips.txt"
        for node_id, why in forbidden:
            terminalreporter.line(f"NOT ALLOWED ({rule}): {node_id}: {why}", red=True)


def _why(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
