"""The pages of docs/ that are made from tables: `python -m phalanx.docs_pages --write|--check`.

Run from the top of a checkout. `--check` changes nothing and exits with 1 if a page is not what
the tables say.
"""

from __future__ import annotations

import os
import sys

from phalanx.cli.help import options_page
from phalanx.differences import page as differences_page
from phalanx.errors import EXIT_CODES
from phalanx.report.causes import CAUSES
from phalanx.signals import SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["exit_codes_page", "main", "pages"]


def pages() -> Mapping[str, str]:
    """Text of each generated page by its path in a checkout."""
    return {
        "docs/differences.md": differences_page(),
        "docs/reference/options.md": options_page(),
        "docs/reference/exit-codes.md": exit_codes_page(),
        "docs/reference/failures.md": failures_page(),
    }


def exit_codes_page() -> str:
    """`docs/reference/exit-codes.md`."""
    lines = [
        "# Exit codes and signals",
        "",
        "Generated from the tables in `phalanx.errors` and `phalanx.signals` (`make docs`); do not",
        "edit.",
        "",
        "## Exit codes",
        "",
        "When a worker's failure ends the job, `phalanx` exits as the first that failed did:",
        "",
        "| the worker | exit code |",
        "| --- | --- |",
        "| exited with a code from 1 to 255 | that code |",
        "| was killed by signal n | 128 + n: 137 for SIGKILL, 139 for SIGSEGV |",
        "",
        "The first is the first of the last group: with `--max-restarts`, earlier groups do not",
        "count. Workers that were stopped because of it do not count either. When no worker's",
        "failure is the cause, the code is one of these:",
        "",
        "| code | meaning | what to do |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {int(row.code)} | {row.meaning} | {row.what_to_do} |" for row in EXIT_CODES]
    lines += [
        "",
        "A worker may exit with one of these codes itself. The line on stderr tells which it was:",
        "it names a rank when a worker failed.",
        "",
        "## Signals to phalanx",
        "",
        "| signal | what happens | exit code |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {row.signal} | {row.what_happens} | {row.exit_code} |" for row in SIGNALS]
    lines += [
        "",
        "INT, TERM, HUP and QUIT stop the job because they are in `--signals-to-handle`. One that",
        "is not in it does what it does to any program: it ends phalanx, and with it the workers.",
        "Other signals can be put in. Who gets the signal when, and how long a stop takes, is in",
        "[stop and save](../how-to/stop-and-save.md).",
    ]
    return "\n".join(lines) + "\n"


def failures_page() -> str:
    """`docs/reference/failures.md`."""
    lines = [
        "# Causes of failures",
        "",
        "Generated from the table in `phalanx.report.causes` (`make docs`); do not edit.",
        "",
        "The [failure report](../how-to/failure-report.md) tells these apart. The word is what",
        "`failure.json` has as `cause`. What cannot heal is not tried again by `--max-restarts`,",
        "if all workers that failed in the first group agree ([restarts](../how-to/restarts.md)).",
        "",
        "| cause | meaning | hint | can heal |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{cause.word}` | {cause.meaning} | {cause.hint} | {'yes' if cause.can_heal else 'no'} |"
        for cause in CAUSES
    ]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Write the pages, or say which are not current; the exit code."""
    if list(words) not in (["--write"], ["--check"]):
        print("usage: python -m phalanx.docs_pages --write|--check", file=sys.stderr)
        return 64
    stale = [path for path, text in pages().items() if _read(path) != text]
    if words[0] == "--check":
        for path in stale:
            print(f"{path} is not what the tables say: make docs", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(pages()[path])
        print(f"wrote {path}")
    return 0


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
