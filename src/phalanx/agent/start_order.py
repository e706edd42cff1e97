"""PURE: from a place in a round to the order that has its workers started, and its words."""

from __future__ import annotations

from phalanx.job import StopSignalTo
from phalanx.rendezvous.member import GRACE_AFTER_FAILURE_S
from phalanx.workers.command import worker_argv
from phalanx.workers.environment import worker_environment
from phalanx.workers.messages import Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from phalanx.job import JobSpec
    from phalanx.rendezvous.effects import Assignment

__all__ = ["start_order", "starting_line"]


def start_order(
    spec: JobSpec,
    assignment: Assignment,
    error_files: Sequence[str],
    inherited: Mapping[str, str],
) -> Start:
    """Commands and variables of this node's workers. `error_files`: one per local rank, "" none."""
    timeout_s = spec.shutdown_timeout_s
    return Start(
        round=assignment.round,
        workers=tuple(
            (
                local_rank,
                worker_argv(spec.command, local_rank),
                worker_environment(
                    spec,
                    assignment,
                    local_rank,
                    error_file=error_files[local_rank],
                    inherited=inherited,
                ),
                spec.worker_cpus[local_rank] if spec.worker_cpus else (),
            )
            for local_rank in range(spec.local_world_size)
        ),
        whole_group=spec.stop_signal_to is StopSignalTo.GROUP,
        leftover_timeout_s=GRACE_AFTER_FAILURE_S if timeout_s is None else timeout_s,
    )


def starting_line(assignment: Assignment, spec: JobSpec) -> str:
    """What a round is, for those who want to know."""
    first = assignment.rank_base
    last = first + spec.local_world_size - 1
    of_max = f" of {spec.max_restarts}" if spec.restart_window_s is None else ""
    return (
        f"run id {spec.run_id}, round {assignment.round}: starting {spec.local_world_size} workers,"
        f" ranks {first} to {last} of {assignment.world_size}; restart"
        f" {assignment.restart_count}{of_max}; store at"
        f" {assignment.master_addr}:{assignment.master_port}"
    )
