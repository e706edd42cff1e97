"""Which failure was the first, and what the others are: scenes of one round."""

from __future__ import annotations

import signal

from phalanx.report.decide import Verdict, decide, explained
from phalanx.report.evidence import MemoryCounters, Observed
from report_scenes import GLOO, TRACEBACK, end, scene, stopped

KEY_ERROR = TRACEBACK.replace("ValueError: bad batch", "KeyError: 'x'")


def first(observed: Observed) -> tuple[int | None, str]:
    """Rank and headline."""
    found = decide(observed).first
    assert found is not None
    return found.end.failure.rank, found.headline


def groups(verdict: Verdict, which: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(group.diagnosis.cause, group.ranks) for group in getattr(verdict, which)]


def test_the_earliest_end_that_nobody_asked_for_is_the_first_failure() -> None:
    seen = scene(stopped(0, at=1.0), end(2, code=3, at=2.0), end(1, code=4, at=1.5))

    assert first(seen) == (1, "exited with code 4")


def test_what_ends_after_the_stop_is_a_victim_whatever_it_ended_with() -> None:
    seen = scene(
        end(1, code=1, stderr=TRACEBACK, at=2.0),
        end(0, code=1, stderr=KEY_ERROR, stopped=True, at=2.5),
        end(2, signum=signal.SIGSEGV, stopped=True, at=2.5),
        stopped(3, at=2.5),
    )
    verdict = decide(seen)

    assert first(seen) == (1, "ValueError: bad batch")
    assert verdict.others == ()
    assert groups(verdict, "victims") == [("stopped", (0, 2, 3))]


def test_a_victim_that_outlives_the_timeout_is_told_apart() -> None:
    seen = scene(
        end(1, code=1, stderr=TRACEBACK, at=2.0),
        end(0, signum=signal.SIGKILL, stopped=True, killed=True, at=32.0),
        stopped(2),
    )

    assert groups(decide(seen), "victims") == [("timeout", (0,)), ("stopped", (2,))]


def test_of_ends_within_ten_milliseconds_one_with_an_exception_goes_before_an_abort() -> None:
    abort = end(0, signum=signal.SIGABRT, at=2.000)
    seen = scene(abort, end(1, code=1, stderr=TRACEBACK, at=2.009))
    later = scene(abort, end(1, code=1, stderr=TRACEBACK, at=2.02))

    assert first(seen) == (1, "ValueError: bad batch")
    assert first(later)[0] == 0


def test_of_equals_the_one_that_was_seen_first_is_the_first() -> None:
    seen = scene(end(2, code=5, at=2.001), end(1, code=6, at=2.0))

    assert first(seen)[0] == 2


def test_a_peer_that_noticed_earlier_is_a_victim() -> None:
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(2, code=1, stderr=GLOO.replace("10.0.0.1", "10.0.0.2"), at=2.1),
        end(1, code=1, stderr=TRACEBACK, at=2.4),
    )
    verdict = decide(seen)

    assert first(seen) == (1, "ValueError: bad batch")
    assert groups(verdict, "victims") == [("lost-peer", (0, 2))]
    assert verdict.others == ()


def test_a_failure_that_came_long_after_its_peers_is_the_first_if_nobody_asked_for_it() -> None:
    """--failure-grace shows it: it left its group, which the peers noticed, and then failed."""
    seen = scene(end(0, code=1, stderr=GLOO, at=2.0), end(1, code=1, stderr=TRACEBACK, at=13.5))

    assert first(seen) == (1, "ValueError: bad batch")
    assert groups(decide(seen), "victims") == [("lost-peer", (0,))]


def test_a_peer_is_no_victim_of_what_was_stopped_long_after() -> None:
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(1, code=1, stderr=TRACEBACK, at=3.5, stopped=True),
    )
    verdict = decide(seen)

    assert first(seen)[0] == 0
    assert verdict.first is not None
    assert verdict.first.cause == "lost-peer"
    assert "other ranks and nodes" in verdict.first.hint


def test_a_crash_that_took_its_time_goes_before_the_peers_that_outran_it() -> None:
    """It dumps core; meanwhile its peers fail, and it is sent the stop signal like all."""
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(1, signum=signal.SIGSEGV, stopped=True, at=2.6),
        stopped(2, at=2.1),
    )
    verdict = decide(seen)

    assert first(seen)[0] == 1
    assert groups(verdict, "victims") == [("lost-peer", (0,)), ("stopped", (2,))]


def test_an_exception_of_its_own_goes_before_the_peers_that_outran_it() -> None:
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(1, code=1, stderr=TRACEBACK, stopped=True, at=2.2),
        end(2, code=1, stderr=TRACEBACK.replace("ValueError: bad batch", "KeyboardInterrupt"),
            stopped=True, at=2.1),
    )  # fmt: skip

    assert first(seen) == (1, "ValueError: bad batch")


def test_one_that_was_dying_of_an_exception_when_it_was_stopped_goes_before_its_peers() -> None:
    """Python's clean-up takes its time, and SIGTERM cuts it short."""
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(1, signum=signal.SIGTERM, stderr=TRACEBACK, stopped=True, at=2.2),
    )

    assert first(seen) == (1, "ValueError: bad batch")
    assert groups(decide(seen), "victims") == [("lost-peer", (0,))]


def test_peers_of_a_worker_on_another_node_die_alike() -> None:
    verdict = decide(scene(*(end(r, code=1, stderr=GLOO + f"{r}\n") for r in range(3))))

    assert groups(verdict, "others") == [("lost-peer", (1, 2))]
    assert verdict.others[0].like_first


def test_a_worker_that_was_only_stopped_is_not_blamed_for_a_lost_peer() -> None:
    seen = scene(end(0, code=1, stderr=GLOO, at=2.0), stopped(1, at=2.1))

    assert first(seen)[0] == 0


def test_forty_that_die_of_one_exception_are_one_cause_even_those_that_got_the_stop() -> None:
    ends = [end(rank, code=1, stderr=KEY_ERROR, at=2.0 + rank / 100, stopped=rank > 5)
            for rank in range(40)]  # fmt: skip
    verdict = decide(scene(*ends, *(stopped(rank) for rank in range(40, 64)), world_size=64))

    assert groups(verdict, "others") == [("exception", tuple(range(1, 40)))]
    assert verdict.others[0].like_first
    assert groups(verdict, "victims") == [("stopped", tuple(range(40, 64)))]


def test_messages_that_only_name_the_worker_are_equal() -> None:
    def about(rank: int) -> str:
        return TRACEBACK.replace("bad batch", f"rank {rank} (pid {4700 + rank}) at 0x7f{rank}")

    verdict = decide(scene(*(end(rank, code=1, stderr=about(rank)) for rank in range(4))))
    other = decide(
        scene(
            *(end(r, code=1, stderr=TRACEBACK.replace("batch", f"step {r + 90}")) for r in (0, 1))
        )
    )

    assert [group.ranks for group in verdict.others] == [(1, 2, 3)]
    assert not other.others[0].like_first


def test_other_failures_are_grouped_by_cause() -> None:
    seen = scene(
        end(0, code=1, stderr=TRACEBACK, at=2.0),
        *(end(rank, code=1, stderr=KEY_ERROR, at=2.0) for rank in (4, 5)),
        end(1, code=1, stderr=TRACEBACK, at=2.0),
        end(2, code=9, at=2.0),
    )

    assert groups(decide(seen), "others") == [
        ("exception", (1,)),
        ("exception", (4, 5)),
        ("exit-code", (2,)),
    ]


def test_a_round_that_was_only_stopped_has_no_first_failure() -> None:
    verdict = decide(scene(stopped(0), stopped(1)))

    assert verdict.first is None
    assert groups(verdict, "victims") == [("stopped", (0, 1))]
    assert explained(verdict) == ()


def test_the_coordinator_hears_what_failed_by_itself_and_not_of_victims() -> None:
    module = TRACEBACK.replace("main()", "import x").replace("ValueError: bad batch", "ImportError")
    module = module.replace("in main", "in <module>")
    seen = scene(
        end(0, code=1, stderr=module, at=2.0),
        end(1, code=1, stderr=module, at=2.1),
        end(2, code=7, at=2.1),
        stopped(3),
    )

    assert [(e.local_rank, e.cause, e.can_heal) for e in explained(decide(seen))] == [
        (0, "import-error", False),
        (1, "import-error", False),
        (2, "exit-code", True),
    ]


def test_out_of_memory_goes_before_the_peers_that_outran_it() -> None:
    counters = {"memory_before": MemoryCounters(1, 1), "memory_after": MemoryCounters(2, 2)}
    seen = scene(
        end(0, code=1, stderr=GLOO, at=2.0),
        end(1, signum=signal.SIGKILL, stopped=True, at=2.3, **counters),
    )
    verdict = decide(seen)

    assert verdict.first is not None
    assert (verdict.first.cause, verdict.first.end.failure.rank) == ("oom", 1)
