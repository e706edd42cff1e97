"""`--help`, `--version` and the pages that are made from the tables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import phalanx
from harness import PHALANX, finished
from phalanx import __version__
from phalanx.cli.help import help_text, options_page
from phalanx.cli.options import GROUPS, OPTIONS, Option


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_has_every_option_once_with_its_default(option: Option) -> None:
    lines = help_text(100, old_form=option.old_form).splitlines()
    head = f"{option.short}, --{option.name}" if option.short else f"--{option.name}"

    starts = [
        number
        for number, line in enumerate(lines)
        if line.startswith(f"  {head}") and line[2 + len(head) :][:1] in ("", " ")
    ]
    assert len(starts) == 1
    text = " ".join(lines[starts[0] : starts[0] + 6])
    if option.default:
        assert f"(default: {option.default}" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 110])
def test_help_fits_the_terminal(width: int) -> None:
    table = help_text(width).partition("Workers:")[2].partition("Options may be")[0]

    assert max(map(len, table.splitlines())) <= width


def test_a_narrow_terminal_gets_sixty_columns() -> None:
    assert help_text(10) == help_text(60)


def test_every_option_is_in_a_group_that_is_shown() -> None:
    assert {option.group for option in OPTIONS} == set(GROUPS)


def test_only_the_old_form_has_its_own_options_in_its_help() -> None:
    assert "--use-env" in help_text(old_form=True)
    assert "--use-env" not in help_text()


def test_help_texts_are_phrases_without_a_full_stop() -> None:
    for option in OPTIONS:
        assert not option.help.endswith("."), option.name
        assert option.help[0].islower() or option.help.startswith(("MASTER", "LOCAL", "OMP")), (
            option.name
        )


def test_the_options_page_has_a_row_for_every_option() -> None:
    page = options_page()

    for option in OPTIONS:
        spelled = f"--{option.name}"
        rows = [
            line
            for line in page.splitlines()
            if line.startswith((f"| `{spelled}`", f"| `{spelled} "))
            or (option.short and line.startswith(f"| `{option.short}, {spelled}"))
        ]
        assert len(rows) == 1, option.name
        assert (f"`{option.variable}`" in rows[0]) == option.pet
        assert ("not in torchrun" in rows[0]) == option.ours
        assert ("phalanx.launch` only" in rows[0]) == option.old_form


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_on_stdout_and_is_a_success(word: str) -> None:
    run = finished(word, "--no-such-option", env={"COLUMNS": "90"})

    assert run.process.returncode == 0
    assert run.stdout == help_text(90)
    assert finished(word, env={"COLUMNS": "x"}).stdout == help_text(80)
    assert max(map(len, run.stdout.splitlines())) <= 90
    assert run.stderr == ""


def test_version() -> None:
    run = finished("--version")

    assert (run.process.returncode, run.stdout, run.stderr) == (0, f"phalanx {__version__}\n", "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*PHALANX, "--help"], stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(write_end)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_said_in_two_lines() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PHALANX, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )

    assert done.returncode == 73
    assert done.stderr.decode().splitlines() == [
        "phalanx: error: stdout cannot be written: No space left on device",
        "phalanx: hint: is the disk full?",
    ]


def test_a_closed_stdout_is_no_error() -> None:
    command = 'exec "$@" --version >&-'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *PHALANX], stderr=subprocess.PIPE, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_help_imports_nothing_heavy() -> None:
    assert phalanx.__file__ is not None
    where = os.path.dirname(os.path.dirname(phalanx.__file__))  # -S does without site-packages
    program = "import sys; from phalanx.cli.help import help_text; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": where},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )

    assert not {"argparse", "dataclasses", "json", "re"} & {*done.stdout.decode().split()}
