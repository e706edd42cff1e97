"""`python -m phalanx`: the command, without letting the user's files stand in for Python's.

With `-m` Python looks for modules in the current directory first, and a `signal.py` or `select.py`
next to a training script is common. That place is taken off the path before anything is imported
that could be found there. Workers are started by exec and get the path they would have without us;
what the user put on PYTHONPATH is kept. What `-m` itself imports before this line (collections,
pkgutil) cannot be helped; the `phalanx` command has no such trouble.
"""

import os
import sys

__all__ = ["start"]


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # it has been removed; Python put nothing on the path for it


def start(*, old_form: bool = False) -> None:
    """Run the command, from a module that was started with `-m`; never returns."""
    if not sys.flags.safe_path and sys.path[0] == _current_directory():
        del sys.path[0]

    from phalanx.cli.main import main

    main(old_form=old_form)


if __name__ == "__main__":
    start()
