"""The docs are true: their commands print what they say, and their links lead somewhere.

In a block marked `console`, a line that begins with `$ ` is a command (`> ` goes on with it), and
what follows is all that it prints, stdout and stderr together. `...` in a line stands for anything;
a line that is only `...` stands for any lines. Workers print when they like, so the order of lines
does not count. The commands of a page are run one after the other in one copy of examples/.

A block marked `python` whose first line is `# examples/NAME` is that file, to the letter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
#: For a command of a page; training with torch is the longest.
LIMIT_S = 90


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def blocks(page: Path, kind: str) -> list[str]:
    return [text for mark, text in BLOCK.findall(page.read_text()) if mark == kind]


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """(command, expected lines), in order."""
    command: list[str] = []
    expected: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), expected
            command, expected = [line[2:]], []
        elif line.startswith("> ") and not expected:
            command.append(line[2:])
        else:
            expected.append(line)
    if command:
        yield "\n".join(command), expected


def unmatched(expected: list[str], printed: list[str]) -> tuple[list[str], list[str]]:
    """What was promised and not printed, and what was printed and not promised."""
    left = list(printed)
    missing = []
    # Exact lines first, so that a pattern does not take the line that one of them needs.
    for line in sorted((line for line in expected if line != "..."), key=lambda li: "..." in li):
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        found = next((there for there in left if pattern.fullmatch(there)), None)
        if found is None:
            missing.append(line)
        else:
            left.remove(found)
    return missing, [] if "..." in expected else left


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`phalanx` and `python` as a reader has them after installing."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in (("python", ""), ("phalanx", "-m phalanx")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name_of)
def test_the_commands_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, bin_folder: Path
) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(CHECKOUT / "examples", folder)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    for name in ("PYTHONUNBUFFERED", "OMP_NUM_THREADS"):
        environment.pop(name, None)
    code = 0
    for block in blocks(page, "console"):
        for command, expected in commands(block):
            ended = subprocess.run(
                ["bash", "-c", f"(exit {code})\n{command}"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            code = ended.returncode
            missing, extra = unmatched(expected, ended.stdout.splitlines())

            assert (missing, extra) == ([], []), f"$ {command}\n{ended.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_shown_are_the_files_there(page: Path) -> None:
    for block in blocks(page, "python"):
        first, _, rest = block.partition("\n")
        if first.startswith("# examples/"):
            assert rest == (CHECKOUT / first[2:]).read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)

    assert not broken


def anchors(page: Path) -> set[str]:
    """As the usual renderers make them of headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_from_the_index() -> None:
    index = CHECKOUT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}

    pages = {page.resolve() for page in (CHECKOUT / "docs").rglob("*.md")} - {index.resolve()}

    assert pages - linked == set()


def test_the_order_of_lines_does_not_count_but_their_number_does() -> None:
    assert unmatched(["a", "b"], ["b", "a"]) == ([], [])
    assert unmatched(["a", "a"], ["a"]) == (["a"], [])
    assert unmatched(["a"], ["a", "b"]) == ([], ["b"])


def test_dots_stand_for_anything() -> None:
    assert unmatched(["pid ...", "pid 1"], ["pid 1", "pid 2"]) == ([], [])
    assert unmatched(["..."], ["a", "b"]) == ([], [])
    assert unmatched(["a", "..."], ["b"]) == (["a"], [])
