"""The fork server: starts workers, carries out the stop machine, reaps; nothing else does.

One single-threaded process per node, in a session of its own, that holds back all signals it can.
It waits for three things at once: the agent's orders, the death of children, and the instants of
the stop machine. All decisions about stopping are in `workers.stop`; here they are carried out.

It is the parent of everything the job starts: workers, because it forked them; what workers leave
behind, because it adopts orphans. So it sees every end, and can clear all of it. If it dies itself
the kernel kills the workers (they asked for that) and the agent, which adopts orphans too, clears
the rest. If the agent dies its end of the socket pair closes, and everything here is killed.

The workers' store is served by a child of the fork server as well, see `workers.store_process`.
"""

from __future__ import annotations

import os
import select
import signal

from phalanx.record import replace
from phalanx.workers.adopted import Adopted
from phalanx.workers.console_process import ConsoleProcess
from phalanx.workers.group import WorkerGroup
from phalanx.workers.messages import (
    Continue,
    FinishOutput,
    GroupGone,
    HurryOutput,
    Kill,
    Link,
    OpenStore,
    Ping,
    Pong,
    Ready,
    ReleaseKeyboard,
    Resize,
    SayLine,
    ServiceLost,
    SignalAll,
    Start,
    Stop,
    StopTakesTime,
    StopTimedOut,
    StoreRefused,
    Suspend,
    Suspended,
)
from phalanx.workers.process import (
    StartState,
    adopt_orphans,
    block_signals,
    boottime,
    children,
    exit_status,
    kernel_wait_channel,
    kill_children,
    reap,
    set_title,
    signal_child,
    signal_descendants,
    signal_group,
    wake_with_parent,
    wakeup_pipe,
)
from phalanx.workers.stop import (
    AgentGone,
    ChildrenSeen,
    ContinueOrdered,
    ContinueTree,
    Effect,
    Event,
    GroupStarted,
    KillOrdered,
    KillTree,
    Leave,
    ReportGone,
    ReportKilling,
    ReportWaiting,
    SignalHelpers,
    SignalOrphans,
    SignalWorkers,
    StopMachine,
    StopOrdered,
    SuspendOrdered,
    SuspendTree,
    Ticked,
    WorkerGone,
)
from phalanx.workers.store_process import StoreProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn

    from phalanx.workers.messages import Message
    from phalanx.workers.store_process import StoreService

__all__ = ["ForkServer"]


#: From here on the usual limits of open files may not do for the pipes of all.
MANY_WORKERS = 32
FILES_PER_WORKER = 5
SPARE_FILES = 64


class ForkServer:
    """The whole of the fork server's process; `run` never returns."""

    def __init__(self, link: Link, store: StoreService, start_state: StartState) -> None:
        self._link = link
        self._start_state = start_state
        self._machine = StopMachine()
        self._adopted = Adopted()
        self._agent_there = True
        #: What somebody else had stopped when we last suspended the rest.
        self._stopped_before: set[int] = set()
        self._poll = select.poll()
        self._store = StoreProcess(store, self._poll)
        self._console = ConsoleProcess(self._poll, link)
        self._group = WorkerGroup(self._poll, link, start_state)
        #: The end of a round, once the writer has told what failed workers have said last.
        self._gone: GroupGone | None = None
        self._wakeup_fd = -1

    def run(self) -> NoReturn:
        self._settle()
        while True:
            self._turn()

    def _settle(self) -> None:
        """A session of our own, orphans adopted, signals held back but for children's deaths."""
        if os.getsid(0) != os.getpid():
            os.setsid()
        adopt_orphans()
        wake_with_parent(os.getppid())
        set_title("phalanx fork server")
        self._wakeup_fd = wakeup_pipe()
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        block_signals(but=(signal.SIGCHLD,))
        self._start_state.note_changes()
        self._poll.register(self._wakeup_fd, select.POLLIN)
        self._poll.register(self._link.fileno(), select.POLLIN)

    # The loop

    def _turn(self) -> None:
        instants = [at for at in (self._machine.deadline, self._console.deadline) if at is not None]
        wait_ms = max(0.0, (min(instants) - boottime()) * 1000 + 1) if instants else None
        for fd, _events in self._poll.poll(wait_ms):
            if fd == self._wakeup_fd:
                os.read(fd, 4096)
                self._reap()
            elif fd == self._link.fileno():
                self._link.flush()
                self._receive()
            elif fd in self._store.watched:
                self._start_store()
            elif fd == self._console.fileno():
                self._console.hear()
            else:
                self._group.exec_known(fd)
        deadline = self._machine.deadline
        if deadline is not None and boottime() >= deadline:
            self._reap()  # who has gone in time is not late
        self._handle(Ticked())
        self._report_gone()
        self._console.flush()
        if self._agent_there:
            wanted = select.POLLIN | (select.POLLOUT if self._link.wants_write else 0)
            self._poll.modify(self._link.fileno(), wanted)

    def _receive(self) -> None:
        messages, self._agent_there = self._link.receive()
        if self._agent_there:
            for message in messages:
                self._obey(message)
        else:
            self._poll.unregister(self._link.fileno())
            self._link.close()
            self._handle(AgentGone())

    def _obey(self, message: Message) -> None:
        match message:
            case OpenStore(port, loopback, in_worker):
                self._open_store(port, loopback=loopback, in_worker=in_worker)
            case Start():
                self._start(message)
            case Stop(round, signum, timeout_s):
                self._see_children()
                self._handle(StopOrdered(round, signum, timeout_s))
            case Kill(round):
                self._handle(KillOrdered(round))
            case SignalAll(round, signum) if round == self._machine.round:
                alive = tuple(self._machine.alive)
                self._group.signal(alive, signum, whole_group=self._machine.whole_group)
            case Suspend():
                self._handle(SuspendOrdered())
                self._link.send(Suspended())
            case Continue():
                self._handle(ContinueOrdered())
            case Ping(number):
                self._link.send(Pong(number))
            case SayLine() | Resize() | FinishOutput() | HurryOutput() | ReleaseKeyboard():
                self._console.order(message)
            case _:
                pass

    def _handle(self, event: Event) -> None:
        for effect in self._machine.handle(event, boottime()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SignalWorkers(local_ranks, signum, whole_group):
                for each in (signum, signal.SIGCONT):  # one that is stopped hears it, too
                    self._group.signal(local_ranks, each, whole_group=whole_group)
            case SignalOrphans(pids, signum):
                for pid in pids:
                    signal_child(pid, signum)
            case SignalHelpers(signum):
                signal_descendants(os.getpid(), signum, self._not_helpers())
            case KillTree(whole_tree):
                self._kill_tree(whole_tree=whole_tree)
            case SuspendTree():
                from phalanx.workers.suspend import suspend_descendants

                self._stopped_before = suspend_descendants(os.getpid(), self._services())
            case ContinueTree():
                from phalanx.workers.suspend import continue_descendants

                continue_descendants(os.getpid(), self._services(), self._stopped_before)
            case ReportWaiting(round, local_ranks, helpers, left_s):
                self._link.send(StopTakesTime(round, local_ranks, helpers, left_s))
            case ReportKilling(round, local_ranks, helpers):
                self._link.send(StopTimedOut(round, local_ranks, helpers))
            case ReportGone(round, stuck):
                self._group_gone(round, stuck=stuck)
            case Leave():
                self._leave()

    # Starting

    def _start(self, order: Start) -> None:
        local_ranks = tuple(local_rank for local_rank, *_ in order.workers)
        by_rank = {added.get("RANK") or "": rank for rank, _argv, added, _cpus in order.workers}
        self._adopted.begin(order.round, by_rank)
        self._store.watch()
        self._handle(
            GroupStarted(order.round, local_ranks, order.whole_group, order.leftover_timeout_s)
        )
        self._group.begin(order.round)
        if len(order.workers) > MANY_WORKERS:
            self._start_state.allow_files(FILES_PER_WORKER * len(order.workers) + SPARE_FILES)
        try:
            stdios = self._console.open_streams(order)
        except OSError as error:
            never_ran = self._group.refuse(order.workers, error.errno)
        else:
            never_ran = self._group.start(order.workers, stdios)
        for local_rank in never_ran:
            self._handle(WorkerGone(local_rank))
        self._begin_output(order)
        if never_ran:
            self._see_children()

    def _begin_output(self, order: Start) -> None:
        """The workers run; now what reads what they say."""
        try:
            self._console.begin(order)
        except OSError as error:
            lost = ServiceLost(order.round, "writer", None, None, error.errno)
            self._link.send(lost)

    # Signalling

    def _not_helpers(self) -> set[int]:
        """Our direct children that are no orphans: workers, and the store."""
        return {*self._group.local_ranks, *self._services()}

    def _services(self) -> set[int]:
        """What serves the workers, and is neither stopped nor killed with them."""
        return {pid for pid in (self._store.pid, self._console.pid) if pid}

    def _kill_tree(self, *, whole_tree: bool) -> None:
        """KILL: the whole tree once, since a huge process takes long to let go of its children;
        then direct children, as often as new ones arrive. Those cannot be missed.
        """
        spare = self._services()
        if whole_tree:
            for pid in self._group.local_ranks:
                signal_group(pid, signal.SIGKILL)
            signal_descendants(os.getpid(), signal.SIGKILL, spare)
        kill_children(spare)

    # Ends

    def _reap(self) -> None:
        """Reap all that is dead, report workers, and tell the machine what is left."""
        died: set[int] = set()
        now = boottime()  # one instant for all that are found dead together
        for dead in reap():
            local_rank = self._group.local_ranks.get(dead.si_pid)
            if local_rank is not None:
                died.add(local_rank)
                self._console.worker_gone(local_rank)
                self._group.reaped(dead, now)
                self._handle(WorkerGone(local_rank))
            elif dead.si_pid == self._store.pid:
                self._store_lost(dead)
            elif dead.si_pid == self._console.pid:
                self._writer_lost(dead)
            else:
                died.update(self._adopted.reaped(dead.si_pid))
        self._see_children(died)

    def _see_children(self, died: Collection[int] = ()) -> None:
        """Tell the machine which orphans there are. `died`: local ranks of the workers, or of the
        owners of the orphans, that have just been reaped.
        """
        workers = self._group.local_ranks
        self._handle(ChildrenSeen(self._adopted.look(workers, self._not_helpers(), died)))

    def _group_gone(self, round_: int, *, stuck: bool) -> None:
        spare = self._services()
        left = [pid for pid in children(os.getpid()) if pid not in spare] if stuck else []
        self._group.forget()
        self._console.end_round(self._group.failed)
        self._store.stop()
        if not stuck:
            self._store.renew()
        wait_channels = tuple((pid, kernel_wait_channel(pid)) for pid in left)
        self._gone = GroupGone(round_, self._store.port, wait_channels)
        self._report_gone()

    def _report_gone(self) -> None:
        """Tell of the round's end, once the writer has answered, or is too slow."""
        if self._gone is not None and self._console.round_ended:
            self._link.send(replace(self._gone, tails=self._console.tails))
            self._gone = None

    def _leave(self) -> NoReturn:
        self._store.stop()
        os._exit(0)

    # The store

    def _open_store(self, port: int | None, *, loopback: bool, in_worker: bool) -> None:
        try:
            self._store.open(port, loopback=loopback, in_worker=in_worker)
        except OSError as error:
            self._link.send(StoreRefused(port or 0, error.errno or 0))
        else:
            self._link.send(Ready(self._store.port))

    def _start_store(self) -> None:
        try:
            self._store.start(leave_behind=self._leave_behind)
        except OSError as error:
            refused = ServiceLost(self._machine.round, "store", None, None, error.errno)
            self._link.send(refused)

    def _writer_lost(self, dead: os.waitid_result) -> None:
        """Its readers' ends are gone with it: nothing that workers write gets anywhere."""
        status = exit_status(dead)
        if self._console.ended():
            lost = ServiceLost(self._machine.round, "writer", status.code, status.signal, None)
            self._link.send(lost)

    def _leave_behind(self) -> None:
        """In a child that lives on: no end of ours is to be held open by it."""
        self._link.close()
        self._console.leave_behind()

    def _store_lost(self, dead: os.waitid_result) -> None:
        self._store.pid = None
        status = exit_status(dead)
        lost = ServiceLost(self._machine.round, "store", status.code, status.signal, None)
        self._link.send(lost)
