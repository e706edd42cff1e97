"""PURE: a verdict as the block of lines that is the last thing on the screen.

The first lines hold what matters most, in words that scripts know from torchrun ("Root Cause (first
observed failure)", rank, exitcode). What does not fit a screen makes way from the middle of the
traceback outwards. What the exception says is left whole, for the screen to wrap: only on a screen
that it would fill is it cut.
"""

from __future__ import annotations

from phalanx.outcome import unfit_reason
from phalanx.report.fit import cut, rows_of
from phalanx.report.foreign import clean
from phalanx.report.shorten import LEAST, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.outcome import ExitStatus
    from phalanx.report.decide import Group, Verdict
    from phalanx.report.diagnose import Diagnosis

__all__ = ["exit_number", "folded", "report_lines", "title"]

#: The fewest lines that a report is cut to, however low the screen.
_LEAST = 12
#: So many groups of other failures, and of victims, have a line each.
_GROUPS = 6
_NARROWEST = 40
#: What is to be followed, or copied, is not cut.
_WHOLE = ("hint: ", "logs: ", "report: ")
#: In a file, too, nobody wants to scroll through more than this of a traceback.
_DETAILS = 60


def report_lines(
    verdict: Verdict,
    width: int | None,
    height: int | None,
    *,
    logs: str | None = None,
    report_path: str = "",
) -> tuple[str, ...]:
    """The report, for a screen of this size; None: no screen, nothing is cut to its size.

    `logs`: where to look for more, "" for nowhere; None: in the job's directory, if that stays.
    `report_path`: where `failure.json` is, "" for nowhere.
    """
    first = verdict.first
    if first is not None and first.end.failure.status.errno is not None and _is_worker(verdict):
        error = f"phalanx: error: {title(verdict)}"  # a mistake, or a limit: as before a start
        return (error, f"phalanx: hint: {first.hint}") if first.hint else (error,)
    if logs is None:
        seen = verdict.observed
        logs = (seen.log_dir or "") if seen.logs_kept else ""
    head = [f"phalanx: error: {title(verdict)}"]
    details: tuple[str, ...] = ()
    said_at: int | None = None
    if verdict.first is not None:
        head += _first_lines(verdict, verdict.first)
        details, said_at = shorten(verdict.first.details, verdict.first.said_at, _DETAILS)
    foot = _foot(verdict)
    places = (("logs", logs), ("report", report_path))
    foot += [f"{name}: {clean(path)}" for name, path in places if path]
    if width is not None:
        width = max(width, _NARROWEST)
    if height is not None:
        room = max(height - 2, _LEAST)
        head, details, said_at, foot = _fitted(head, details, said_at, foot, width, room)
    said_from = len(head) + (len(details) if said_at is None else said_at)
    said_to = len(head) + len(details)
    lines = (*head, *(f"  {line}".rstrip() for line in details), *foot)
    if width is None:
        return lines
    return tuple(
        line
        if at == 0 or said_from <= at < said_to or line.startswith(_WHOLE)
        else cut(line, width)
        for at, line in enumerate(lines)
    )


def _is_worker(verdict: Verdict) -> bool:
    """It is a worker's end that the report is about, not the node's."""
    return not (verdict.observed.error or verdict.observed.stuck)


def title(verdict: Verdict) -> str:
    """The sentence that says why the job failed."""
    seen, first = verdict.observed, verdict.first
    if seen.error:
        return clean(seen.error.replace("\n", " "))
    if seen.stuck:
        return clean(unfit_reason(seen.stuck))
    if first is None:
        return "the round was stopped"
    return f"{_sentence(first)}{_after_restarts(verdict)}"


def _sentence(first: Diagnosis) -> str:
    """ "rank 2 failed: ValueError: bad batch", "rank 2 exited with code 7"."""
    how = f"failed: {first.headline}" if first.is_exception else first.headline
    return f"rank {_rank(first)} {how}"


def _after_restarts(verdict: Verdict) -> str:
    count = verdict.observed.restart_count
    return f" (after {count} restart{'s' if count > 1 else ''})" if count else ""


def _rank(diagnosis: Diagnosis) -> int | str:
    rank = diagnosis.end.failure.rank
    return "?" if rank is None else rank


def _first_lines(verdict: Verdict, first: Diagnosis) -> list[str]:
    """Which process, as torchrun says it, and where and when."""
    seen, failure = verdict.observed, first.end.failure
    when = f"{first.end.after_s:.1f} s after its start"
    lines = [
        "Root Cause (first observed failure):",
        f"  rank      : {_rank(first)} (local_rank: {failure.local_rank})",
        f"  exitcode  : {exit_number(failure.status)} (pid: {failure.pid})",
        f"  host      : {clean(seen.host)}, round {seen.round}, {when}",
    ]
    if seen.error or seen.stuck:
        lines.insert(0, _sentence(first))  # the title tells of something else
    if first.details and not first.has_traceback:
        lines.append("  its last lines on stderr:")
    return lines


def exit_number(status: ExitStatus) -> int:
    """As torchrun counts: what it exited with, or the signal that ended it as a negative number."""
    return -status.signal if status.signal is not None else status.exit_code


def _foot(verdict: Verdict) -> list[str]:
    """What to do, and what became of the others."""
    seen, first = verdict.observed, verdict.first
    lines = []
    if first is not None:
        if first.hint:
            lines.append(f"hint: {first.hint}")
        alike = [rank for group in verdict.others if group.like_first for rank in group.ranks]
        if alike:
            alike.append(-1 if first.end.failure.rank is None else first.end.failure.rank)
            lines.append(f"{len(alike)} ranks failed alike: {folded(alike)}")
    lines += [_victims_line(group, verdict) for group in verdict.victims[:_GROUPS]]
    others = [group for group in verdict.others if not group.like_first]
    lines += [f"also failed: {_named(group)} ({_reason(group)})" for group in others[:_GROUPS]]
    more = max(0, len(others) - _GROUPS) + max(0, len(verdict.victims) - _GROUPS)
    if more:
        lines.append(f"... and {more} more kinds of failure")
    if seen.stuck and seen.error:
        lines.append(unfit_reason(seen.stuck))
    return lines


def _victims_line(group: Group, verdict: Verdict) -> str:
    match group.diagnosis.cause:
        case "stopped":
            because = " because of it" if verdict.first is not None else ""
            return f"stopped{because}: {_named(group)}"
        case "timeout":
            return f"killed at the end of the shutdown timeout: {_named(group)}"
        case "lost-peer":
            return f"lost {'its' if len(group.ranks) == 1 else 'their'} peer: {_named(group)}"
        case _:
            return f"ended as well: {_named(group)} ({_reason(group)})"


def _reason(group: Group) -> str:
    return group.diagnosis.headline


def _named(group: Group) -> str:
    return f"rank{'s' if len(group.ranks) > 1 else ''} {folded(group.ranks)}"


def folded(ranks: list[int] | tuple[int, ...]) -> str:
    """ "0, 1, 4-7": three or more in a row are one range; -1, a rank unknown, is "?"."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank >= 0 and rank == runs[-1][1] + 1 and runs[-1][0] >= 0:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    parts = []
    for start, end in runs:
        if end - start >= 2:
            parts.append(f"{start}-{end}")
        else:
            parts += ["?" if rank < 0 else str(rank) for rank in range(start, end + 1)]
    return ", ".join(parts)


def _fitted(
    head: list[str],
    details: tuple[str, ...],
    said_at: int | None,
    foot: list[str],
    width: int | None,
    room: int,
) -> tuple[list[str], tuple[str, ...], int | None, list[str]]:
    """Cut to `room` rows: the middle of the details first, then the foot from its end."""

    def rows(line: str) -> int:
        return rows_of(f"  {line}", width)

    below = [rows_of(line, width) if line.startswith(_WHOLE) else 1 for line in foot]
    if width is not None:
        least = len(head) - 1 + sum(below) + (2 if details else 0)
        head, details = _bounded(head, details, said_at, width, room - least)
    above = rows_of(head[0], width) + len(head) - 1
    details, said_at = shorten(details, said_at, max(room - above - sum(below), LEAST), rows)
    said = details[said_at:] if said_at is not None else ()
    over = above + len(details) - len(said) + sum(map(rows, said)) + sum(below) - room
    if over <= 0 or len(foot) < 2:
        return head, details, said_at, foot
    # The exception itself, and where it came from, matter more than the last of the foot.
    kept = len(foot) - 1
    while kept > 0 and sum(below[kept:-1]) <= over:  # one more, for the line that tells of it
        kept -= 1
    foot = [*foot[:kept], f"... {len(foot) - 1 - kept} lines, see the report ...", foot[-1]]
    return head, details, said_at, foot


def _bounded(
    head: list[str], details: tuple[str, ...], said_at: int | None, width: int, room: int
) -> tuple[list[str], tuple[str, ...]]:
    """Title and message with no line that alone would fill the `room` rows that they have."""
    if said_at is None:
        return [cut(head[0], max(1, room) * width), *head[1:]], details
    columns = max(1, room // (2 if said_at + 1 == len(details) else 3)) * width
    said = (cut(line, columns - 2) for line in details[said_at:])
    return [cut(head[0], columns), *head[1:]], (*details[:said_at], *said)
