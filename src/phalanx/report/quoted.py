"""PURE: what an exception tells of another process, in which the real one happened.

torch's DataLoader, DataParallel and `spawn` raise an exception of their own, with the traceback of
the other process in its message. What is to be said of it is what happened there.
"""

from __future__ import annotations

import re

from phalanx.report import python_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["real_headline"]

_CAUGHT = re.compile(r"Caught \w+ in (?P<where>.+)\.$")
_ORIGINAL = re.compile(r"^Original (?=Traceback )")
_SPAWNED = re.compile(r"^-- (?P<where>Process \d+) terminated with the following \w+:?$")

#: (It stands behind empty lines.)
_SPAWNED_WITHIN = 4


def real_headline(headline: str, behind: Sequence[str]) -> str:
    """ "IndexError: broken image 20 (in DataLoader worker 1)"; `headline` if it quotes nothing.

    `behind`: the lines of the message behind the exception's own.
    """
    caught = _CAUGHT.search(headline) or next(
        filter(None, map(_SPAWNED.match, behind[:_SPAWNED_WITHIN])), None
    )
    if caught is None:
        return headline
    found = python_error.find([_ORIGINAL.sub("", line) for line in behind])
    if found is None:
        return headline
    where = caught["where"].replace("worker process", "worker").replace("Process", "process")
    return f"{found.headline} (in {where})"
