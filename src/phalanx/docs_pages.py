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
    }


def exit_codes_page() -> str:
    """`docs/reference/exit-codes.md`."""
    lines = [
        "# Exit codes",
        "",
        "Generated from the table in `phalanx.errors` (`make docs`); do not edit.",
        "",
        "`phalanx` exits with the code of the first worker that failed, or with 128 + n if signal",
        "n killed it. When no worker's failure is the cause, the code is one of these.",
        "",
        "| code | meaning | what to do |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {int(row.code)} | {row.meaning} | {row.what_to_do} |" for row in EXIT_CODES]
    lines += [
        "",
        "A worker may exit with one of these codes itself. The line on stderr tells which it was:",
        "it names a rank when a worker failed.",
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
