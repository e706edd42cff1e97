"""Print the requirements of extras, and of the build, from pyproject.toml, one a line.

    python scripts/requirements.py test lint build-system

So that they can be installed without the package itself: its wheel is built and installed anew
whenever the source may have changed.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

__all__: list[str] = []

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> None:
    settings = tomllib.loads(PYPROJECT.read_text())
    groups = {
        "build-system": settings["build-system"]["requires"],
        **settings["project"]["optional-dependencies"],
    }
    for name in sys.argv[1:]:
        print(*groups[name], sep="\n")


if __name__ == "__main__":
    main()
