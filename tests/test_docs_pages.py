"""The generated pages of docs/ are what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.differences import DIFFERENCES
from phalanx.docs_pages import main, pages
from phalanx.errors import EXIT_CODES, ExitCode

CHECKOUT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", pages())
def test_a_generated_page_is_current(path: str) -> None:
    assert (CHECKOUT / path).read_text() == pages()[path], "make docs"


def test_every_exit_code_has_a_row() -> None:
    assert [row.code for row in EXIT_CODES] == list(ExitCode)


def test_every_difference_is_on_the_page() -> None:
    lines = pages()["docs/differences.md"].splitlines()

    for row in DIFFERENCES:
        assert sum(line.startswith(f"| {row.what} |") for line in lines) == 1


@pytest.mark.parametrize("page", pages().values(), ids=pages())
def test_rows_have_as_many_cells_as_their_heading(page: str) -> None:
    cells = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = line.replace("\\|", "").count("|")
        cells = cells or count
        assert count == cells, line


def test_check_names_stale_pages_and_write_makes_them_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["--check"]) == 1
    assert capsys.readouterr().err.count("make docs") == len(pages())
    assert main(["--write"]) == 0
    assert main(["--check"]) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")} == {*pages()}


def test_any_other_word_is_a_mistake() -> None:
    assert main(["--wrong"]) == 64
    assert main([]) == 64
