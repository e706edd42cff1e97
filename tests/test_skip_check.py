"""The check of skipped tests, run on small suites of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from skip_check import AllowedSkip, read_allowed

SUITE = """
    import pytest

    def test_runs():
        pass

    @pytest.mark.skip(reason="no such tool")
    @pytest.mark.parametrize("size", [1, 2])
    def test_left_out(size):
        pass

    @pytest.mark.xfail(strict=True)
    def test_known_to_fail():
        raise ValueError
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with our conftest and a list of its own, in which two tests are skipped."""
    monkeypatch.delenv("CI", raising=False)
    ours = Path(__file__).parent
    pytester.makeconftest((ours / "conftest.py").read_text())
    pytester.makepyfile(skip_check=(ours / "skip_check.py").read_text(), test_some=SUITE)
    pytester.makeini("[pytest]\npythonpath = .\nmarkers =\n  long: slow\n  root: rights")
    pytester.maketxtfile(allowed_skips="")
    return pytester


def allow(suite: pytest.Pytester, line: str) -> None:
    suite.maketxtfile(allowed_skips=line)


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "no:cacheprovider", *words)


def test_a_skip_that_is_not_on_the_list_fails_the_run(suite: pytest.Pytester) -> None:
    result = run(suite)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(
        ["skipped: 2, not allowed: 2", "NOT ALLOWED (*): test_some.py::test_left_out?1?: *no such*"]
    )


def test_a_skip_on_the_list_is_counted_and_passes(suite: pytest.Pytester) -> None:
    allow(suite, "# a comment\n\ntest_some.py::test_left_out[*] -- the tool is rare")

    result = run(suite)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["skipped: 2, not allowed: 0"])


def test_one_pattern_does_not_allow_another_test(suite: pytest.Pytester) -> None:
    allow(suite, "test_some.py::test_left_out[1] -- the tool is rare")

    result = run(suite)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skipped: 2, not allowed: 1"])


def test_in_ci_no_skip_is_allowed(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    allow(suite, "* -- everything may be skipped")

    result = run(suite)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skipped: 2, not allowed: 2", "NOT ALLOWED (CI is set)*"])


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_module_that_skips_itself_is_seen(suite: pytest.Pytester, words: tuple[str, ...]) -> None:
    suite.makepyfile(test_some="import pytest\npytest.importorskip('no_such_module_anywhere')")

    result = run(suite, *words)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*not allowed: [1-9]*", "NOT ALLOWED*test_some.py*"])


def test_skips_are_seen_once_with_xdist(suite: pytest.Pytester) -> None:
    result = run(suite, "-n", "2")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["skipped: 2, not allowed: 2"])


def test_a_line_without_a_reason_ends_the_run(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text("test_some.py::test_left_out\n")

    with pytest.raises(pytest.UsageError, match=r"list\.txt:1: not"):
        read_allowed(listing)


@pytest.mark.parametrize(
    ("pattern", "node_id", "matches"),
    [
        ("a.py::test[x-1]", "a.py::test[x-1]", True),
        ("a.py::test[*]", "a.py::test[x-1]", True),
        ("a.py::test", "a.py::test[x-1]", False),
        ("a.py::*", "b/a.py::test", False),
        ("a?py::test", "a.py::test", False),
    ],
)
def test_only_the_star_is_special(pattern: str, node_id: str, matches: bool) -> None:
    assert AllowedSkip(pattern, "why").matches(node_id) is matches


def test_long_tests_run_only_when_asked_for(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_some="import pytest\n@pytest.mark.long\ndef test_a(): pass\ndef test_b(): pass"
    )

    plain = run(suite)
    asked = run(suite, "-m", "long")

    plain.assert_outcomes(passed=1, deselected=1)
    asked.assert_outcomes(passed=1, deselected=1)
    asked.stdout.no_fnmatch_line("*test_b*")


def test_what_needs_root_is_skipped_without_it(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile(test_some="import pytest\n@pytest.mark.root\ndef test_a(): pass")
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    result = run(suite)

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["NOT ALLOWED*test_a: *needs root"])


def test_a_child_process_left_behind_fails_the_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_some="""
        import subprocess
        left = []
        def test_leaves_one():
            left.append(subprocess.Popen(["sleep", "60"]))
        def test_clears_up():
            left[0].kill()
            left[0].wait()
        """
    )

    result = run(suite)

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["child processes left behind:", "*: sleep 60"])
