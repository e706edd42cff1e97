"""Where a job's files lie: torchrun's layout, one object that knows every path.

    <log dir>/<run id>_<8 random>/attempt_<restart count>/<local rank>/error.json
                                                                      /stdout.log, stderr.log
                                 /failure.json
           /latest -> <run id>_<8 random>

A further round with the same restart count goes to `attempt_<n>_round_<k>`: nothing is wiped.
Without `--log-dir` the log directory is a temporary one of ours, which `clean_up` removes.
"""

from __future__ import annotations

import os

from phalanx.errors import ExitCode, StartError
from phalanx.record import Record

__all__ = ["Attempt", "LogPaths", "folder_name"]


class Attempt(Record):
    """The directories of one round: its own and one for each local rank; None without files."""

    folder: str | None
    workers: tuple[str | None, ...]

    @property
    def error_files(self) -> list[str]:
        """The error file of each local rank, "" for none."""
        return ["" if own is None else os.path.join(own, "error.json") for own in self.workers]


class LogPaths:
    """Directories of one job on this node, made as they are needed."""

    def __init__(self, job_dir: str | None, temporary_dir: str | None) -> None:
        #: None with `--log-dir /dev/null`: no files at all.
        self.job_dir = job_dir
        self._temporary_dir = temporary_dir
        self._attempts: set[str] = set()

    @classmethod
    def create(cls, log_dir: str | None, run_id: str, temporary_root: str) -> LogPaths:
        """Make the job's directory, or raise StartError."""
        if log_dir == os.devnull:
            return cls(None, None)
        temporary_dir = None
        try:
            if log_dir is None:
                log_dir = temporary_dir = _fresh_dir(temporary_root, "phalanx_")
            else:
                log_dir = os.path.abspath(log_dir)
                os.makedirs(log_dir, exist_ok=True)
            job_dir = _fresh_dir(log_dir, folder_name(run_id) + "_")
            if temporary_dir is None:
                _point_to(job_dir, os.path.join(log_dir, "latest"))
            return cls(job_dir, temporary_dir)
        except OSError as error:
            if temporary_dir is not None:
                _remove(temporary_dir)
            where = f"the log directory {log_dir}"
            if log_dir is None:
                where = f"a temporary directory in {temporary_root}"
            raise StartError(
                f"{where} cannot be created or written: {error.strerror}",
                "choose another one with --log-dir" + ("" if log_dir else ", or with TMPDIR"),
                exit_code=ExitCode.CANNOT_CREATE,
            ) from None

    @property
    def chosen(self) -> bool:
        """The user has named the log directory, so its files are wanted."""
        return self.job_dir is not None and self._temporary_dir is None

    def start_attempt(self, restart_count: int, round_: int, local_world_size: int) -> Attempt:
        """Make the directories of one round. Raises OSError."""
        if self.job_dir is None:
            return self.no_files(local_world_size)
        attempt = f"attempt_{restart_count}"
        if attempt in self._attempts:
            attempt += f"_round_{round_}"
        self._attempts.add(attempt)
        base = os.path.join(self.job_dir, attempt)
        os.mkdir(base)
        workers = []
        for local_rank in range(local_world_size):
            folder = os.path.join(base, str(local_rank))
            os.mkdir(folder)
            workers.append(folder)
        return Attempt(base, tuple(workers))

    @staticmethod
    def no_files(local_world_size: int) -> Attempt:
        """For a round whose directories cannot be made."""
        return Attempt(None, (None,) * local_world_size)

    def clean_up(self, *, keep_files: bool = False) -> str | None:
        """Remove the temporary directory, if that is what it is. Never raises.

        `keep_files`: only what is empty, so that error files stay to be read; returns where they
        are if there are any.
        """
        if self._temporary_dir is not None and self.job_dir is not None:
            # An empty directory is removed without a descriptor: there may be none left to have.
            _remove(self.job_dir, keep_files=keep_files)
            _remove(self._temporary_dir, keep_files=keep_files)
            if keep_files and os.path.isdir(self.job_dir):
                return self.job_dir
        return None


def folder_name(run_id: str) -> str:
    """The run id as one path component that, with eight digits more, no file system refuses."""
    name = os.fsencode(run_id.replace(os.sep, "_").lstrip("."))[:200]
    return name.decode(errors="ignore") or "job"  # a cut character is left out


def _fresh_dir(parent: str, prefix: str) -> str:
    while True:
        path = os.path.join(parent, prefix + os.urandom(4).hex())
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path


def _point_to(job_dir: str, link: str) -> None:
    """Have `link` lead to the newest job's directory, at no instant to none.

    Never raises: a file system may have no links, and somebody's file of that name stays.
    """
    fresh = f"{job_dir}.link"
    try:
        if os.path.lexists(link) and not os.path.islink(link):
            return
        os.symlink(os.path.basename(job_dir), fresh)
        os.replace(fresh, link)
    except OSError:
        try:
            os.unlink(fresh)
        except OSError:
            pass


def _remove(path: str, *, keep_files: bool = False) -> None:
    """Remove a directory of ours with all in it, following no links."""
    try:
        os.rmdir(path)
    except OSError:
        pass
    else:
        return
    try:
        with os.scandir(path) as listing:
            entries = list(listing)  # one descriptor at a time: there may be hardly any left
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path, keep_files=keep_files)
            elif not keep_files:
                os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        pass  # a file that stays is in it, or it is gone already: not worth a word
