"""How hypothesis runs here: set by importing this, once per process.

No deadline: how long an example takes on a loaded machine says nothing. In CI the examples are the
same each time, so that a change is judged by what it changes; other runs look for new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

__all__: list[str] = []

_IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

settings.register_profile("developer", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if _IN_CI else "developer")
