"""When the writer has read enough, and when it may leave."""

from __future__ import annotations

from phalanx.console.ending import Ending

NEVER_ASKED = 1e9


def test_while_the_job_runs_there_is_no_end() -> None:
    ending = Ending()

    assert not ending.is_near
    assert not ending.is_overdue(NEVER_ASKED)
    assert ending.instants(0.0) == [None]


def test_told_to_finish_it_may_leave_once_all_is_written_and_never_has_to() -> None:
    ending = Ending()
    ending.finish(100.0)

    assert ending.is_near
    assert not ending.is_overdue(NEVER_ASKED)


def test_log_files_are_waited_for_five_seconds_and_then_looked_at_now_and_again() -> None:
    ending = Ending()
    ending.finish(100.0)

    assert [ending.files_are_late(now) for now in (100.0, 104.9, 105.0)] == [False, False, True]
    assert ending.instants(101.0) == [None, None, 105.0]
    assert ending.instants(107.0) == [None, None, 107.2]


def test_a_hurry_counts_from_its_first_time_and_ends_only_what_is_to_end() -> None:
    ending = Ending()
    ending.hurry(100.0)
    ending.hurry(101.0)
    before = ending.is_overdue(102.0)
    ending.finish(101.5)

    assert not before
    assert [ending.is_overdue(now) for now in (101.9, 102.0)] == [False, True]


def test_alone_it_reads_for_a_moment_and_writes_for_another() -> None:
    ending = Ending()
    ending.alone(100.0)
    read = [ending.stops_reading(now, may_come=True) for now in (100.0, 100.6, 100.8, 100.9)]

    assert read == [False, False, True, False]
    assert ending.is_near
    assert [ending.is_overdue(now) for now in (101.0, 101.2)] == [False, True]


def test_alone_with_nothing_to_read_it_only_writes() -> None:
    ending = Ending()
    ending.alone(100.0)

    assert ending.stops_reading(100.0, may_come=False)
    assert [ending.is_overdue(now) for now in (100.2, 100.4)] == [False, True]
