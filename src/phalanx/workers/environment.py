"""PURE: the variables a worker gets, by torchrun's contract (torch 2.13).

Whatever an outer launcher left in the environment under one of these names is replaced. Nothing is
taken away; PHALANX_ROUND is all that torchrun does not have.
"""

from __future__ import annotations

from phalanx.errors import ExitCode, StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.job import JobSpec
    from phalanx.rendezvous.effects import Assignment

__all__ = ["check_virtual_devices", "worker_environment"]


def worker_environment(
    spec: JobSpec,
    assignment: Assignment,
    local_rank: int,
    *,
    error_file: str,
    inherited: Mapping[str, str],
) -> dict[str, str | None]:
    """Variables to add for one worker of a round. `inherited`: what phalanx itself was given.

    `error_file` is the path for TORCHELASTIC_ERROR_FILE, empty for none.
    """
    added: dict[str, str | None] = {
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(local_rank),
        "RANK": str(assignment.rank_base + local_rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(assignment.role_rank_base + local_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "MASTER_ADDR": assignment.master_addr,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(not spec.store_in_worker),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(spec.signals_to_handle),
        "PHALANX_ROUND": str(assignment.round),
    }
    if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in inherited:
        added["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if spec.omp_threads:
        added["OMP_NUM_THREADS"] = str(spec.omp_threads[local_rank])
    elif "OMP_NUM_THREADS" not in inherited and spec.local_world_size > 1:
        added["OMP_NUM_THREADS"] = "1"
    if spec.virtual_local_rank:
        added["CUDA_VISIBLE_DEVICES"] = _one_device(inherited, local_rank)
    return added


def check_virtual_devices(spec: JobSpec, inherited: Mapping[str, str]) -> None:
    """Raise StartError if --virtual-local-rank has more workers than CUDA_VISIBLE_DEVICES names."""
    devices = inherited.get("CUDA_VISIBLE_DEVICES")
    if not spec.virtual_local_rank or devices is None:
        return
    count = len(devices.split(","))
    if count < spec.local_world_size:
        raise StartError(
            f"--virtual-local-rank: {spec.local_world_size} workers, but CUDA_VISIBLE_DEVICES "
            f"names {count} device{'s' if count != 1 else ''} ({devices})",
            "give it one device per worker, or unset it",
            exit_code=ExitCode.UNAVAILABLE,
        )


def _one_device(inherited: Mapping[str, str], local_rank: int) -> str:
    devices = inherited.get("CUDA_VISIBLE_DEVICES")
    return str(local_rank) if devices is None else devices.split(",")[local_rank].strip()
