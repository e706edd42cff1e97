"""What Linux lets a process say about itself and do to its descendants.

Used by the fork server and by the agent, which both adopt what their children leave behind. Only
direct children are signalled by pid: nobody else can reap them, so their pids cannot have been
reused. What is further down is signalled through a pidfd, after a look that it is still the child
of what it was found under.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from phalanx.outcome import ExitStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

__all__ = [
    "StartState",
    "adopt_orphans",
    "block_signals",
    "boottime",
    "children",
    "descendants",
    "die_with_parent",
    "exit_status",
    "kernel_wait_channel",
    "kill_children",
    "proc_is_ours",
    "reap",
    "session_of",
    "set_title",
    "signal_child",
    "signal_descendant",
    "signal_descendants",
    "signal_group",
    "states_of",
    "unblock_signals",
    "variables_of",
    "wake_with_parent",
    "wakeup_pipe",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)

#: Python ignores these at its start; a program expects them at their defaults.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def boottime() -> float:
    """Seconds of the clock that all of phalanx decides by: monotonic, and counts sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def proc_is_ours() -> bool:
    """Does /proc show the pids that we use? A pid namespace may be without one of its own."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when `parent` dies; leave at once if it is dead already.

    To be called in the child, by the main thread, before exec; a setuid program undoes it.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def wake_with_parent(parent: int) -> None:
    """Be continued, should we be stopped, when `parent` dies; or at once if it is dead already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGCONT)


def variables_of(pid: int, *names: str) -> list[str | None]:
    """Variables a process was started with; None for each that it has not, or if it is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            pairs = [pair.partition(b"=") for pair in environment.read().split(b"\0")]
    except OSError:
        pairs = []
    found = {name: value.decode(errors="replace") for name, _, value in pairs}
    return [found.get(name.encode()) for name in names]


def set_title(title: str) -> None:
    """Replace the command line that `ps` and `pkill -f` see, as far as the old one's length."""
    _libc.prctl(_PR_SET_NAME, title.replace(" ", "-").encode()[:15], 0, 0, 0)
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        room = end - start
        if 0 < room < 1 << 21:
            text = title.encode()[: room - 1].ljust(room, b"\0")
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(text)
    except (OSError, ValueError, IndexError):
        pass  # a kernel that forbids it: the old command line stays, nothing depends on it


class StartState:
    """Signal mask and dispositions that phalanx was started with; workers get the same.

    Read before any handler is set. Umask and limits are never changed, so they need no care; but
    for that of open files, which is raised for a job of many workers (`allow_files`).
    """

    def __init__(self, mask: frozenset[int], ignored: frozenset[int] | None = None) -> None:
        """`mask`: what was blocked. `ignored`: what was ignored, if it cannot be seen any more."""
        self.mask = mask
        if ignored is None:
            ignored = frozenset(
                signum
                for signum in signal.valid_signals()
                if signum not in _IGNORED_BY_PYTHON and signal.getsignal(signum) is signal.SIG_IGN
            )
        self.ignored = ignored
        self._changed: list[tuple[int, signal.Handlers]] = []
        #: Soft and hard limit of open files, if they were changed.
        self._open_files: tuple[int, int] | None = None

    def note_changes(self) -> None:
        """Find out what `restore` has to undo: once, since there are 62 signals to look at."""
        self._changed = [
            (signum, wanted)
            for signum in signal.valid_signals()
            for wanted in [signal.SIG_IGN if signum in self.ignored else signal.SIG_DFL]
            if signal.getsignal(signum) is not wanted
            and signum not in (signal.SIGKILL, signal.SIGSTOP)
        ]

    def allow_files(self, count: int) -> None:
        """Raise our own limit of open files if it is lower, and as far as may be."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft >= count or self._open_files is not None:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
        except (OSError, ValueError):
            return  # then some cannot be started, which is told
        self._open_files = soft, hard

    def restore(self) -> None:
        """In a child, before exec: as at the start."""
        if self._open_files is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)
        for signum, wanted in self._changed:
            signal.signal(signum, wanted)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def wakeup_pipe() -> int:
    """The read end of a pipe into which the number of each signal that has a handler is written,
    as one octet. Neither end blocks.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    return read_end


def block_signals(but: Container[int] = ()) -> None:
    """Hold back every signal `but` some: around a fork whose child must not run the parent's
    handlers, or for the life of a process that nobody is to stop by accident.
    """
    held = [signum for signum in signal.valid_signals() if signum not in but]
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def unblock_signals() -> None:
    """Let signals in: our processes act on them, whatever mask they were started with."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def children(pid: int) -> list[int]:
    """Pids of the direct children of `pid`, zombies included; empty if it is gone.

    Of our own children none can be missed: only we can take one from the list.
    """
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                found += map(int, listing.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}") and not os.path.exists("/proc/thread-self/children"):
            return _children_by_scan(pid)  # a kernel without CONFIG_PROC_CHILDREN
    except OSError:
        pass
    return found


def _children_by_scan(parent: int) -> list[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if _stat(pid)[:1] == [parent]]


def _stat(pid: int) -> list[int]:
    """[parent, process group, session] of a process; empty if it is gone."""
    return [int(field) for field in _stat_fields(f"/proc/{pid}")[1:4]]


def _stat_fields(folder: str) -> list[bytes]:
    """What /proc says of a process or thread after its name, first its state; empty if it is
    gone.
    """
    try:
        with open(f"{folder}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def states_of(pid: int) -> list[str]:
    """The letters that the kernel gives the states of a process's threads, as `ps -L` shows them;
    empty if it is gone.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    stats = (_stat_fields(f"/proc/{pid}/task/{task}") for task in tasks)
    return [fields[0].decode() for fields in stats if fields]


def session_of(pid: int) -> int | None:
    """Session id of a process; None if it is gone."""
    stat = _stat(pid)
    return stat[2] if stat else None


def signal_child(pid: int, signum: int) -> None:
    """Signal one direct child that has not been reaped."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        pass


def signal_group(leader: int, signum: int) -> None:
    """Signal the process group of a direct child that leads one and has not been reaped."""
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        signal_child(leader, signum)  # between fork and setsid there is no group yet


def kill_children(spare: Container[int]) -> None:
    """SIGKILL to all our direct children but the spared ones."""
    for pid in children(os.getpid()):
        if pid not in spare:
            signal_child(pid, signal.SIGKILL)


def signal_descendants(root: int, signum: int, spare: Container[int]) -> None:
    """Signal all that is below `root`. Spared processes get nothing; what is below them does."""
    for pid, parent in descendants(root):
        if pid not in spare:
            signal_descendant(pid, parent, signum)


def descendants(root: int) -> Iterator[tuple[int, int]]:
    """(pid, parent) of all below `root`, parents first, as far as one look can tell."""
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid in children(parent):
            yield pid, parent
            waiting.append(pid)


def signal_descendant(pid: int, parent: int, signum: int) -> None:
    """Signal what was found to be a child of `parent`, if it still is: through a pidfd."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        # This Python or kernel has no pidfds: a look just before is the best there is.
        if _stat(pid)[:1] == [parent]:
            signal_child(pid, signum)
        return
    try:
        if _stat(pid)[:1] == [parent]:
            signal.pidfd_send_signal(handle, signum)
    except OSError:
        pass
    finally:
        os.close(handle)


def reap() -> Iterator[os.waitid_result]:
    """Reap every child that is dead, one after the other, without waiting for any."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return
        if dead is None:
            return
        yield dead


def exit_status(dead: os.waitid_result) -> ExitStatus:
    """How a reaped child ended."""
    if dead.si_code == os.CLD_EXITED:
        return ExitStatus(dead.si_status)
    return ExitStatus(signal=dead.si_status, core_dumped=dead.si_code == os.CLD_DUMPED)


def kernel_wait_channel(pid: int) -> str:
    """Where in the kernel a process waits, for people; empty if that cannot be told."""
    try:
        with open(f"/proc/{pid}/wchan") as channel:
            return channel.read(64).strip("0")
    except OSError:
        return ""
