"""The agent of one node: the shell around the member machine.

It waits for the fork server's reports, for signals and for the next instant that matters, turns
each into an event, and carries out the effects that come back. It decides nothing and waits for
nothing else. With one node the coordinator runs in the same process: what the member tells it, and
what it answers, pass through one queue.

There is no network on one node, so this needs no asyncio: a poll over two descriptors does, and
saves its import (50 ms, 10 MiB). What a loop has to call are the `on_*` methods.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque

from phalanx.agent.observer import Observer
from phalanx.agent.output import Output
from phalanx.agent.start_order import start_order, starting_line
from phalanx.errors import ExitCode, InternalError, StartError
from phalanx.outcome import ExitStatus, Failure, Outcome, OutcomeKind
from phalanx.record import Record
from phalanx.rendezvous.coordinator import Coordinator, Limits
from phalanx.rendezvous.effects import (
    AnnounceGrace,
    AnnounceRestart,
    Assignment,
    CoordinatorEffect,
)
from phalanx.rendezvous.events import CoordinatorEvent, StoreOffer, Ticked
from phalanx.rendezvous.member import (
    ClearTree,
    ForkServerLost,
    ForkServerReady,
    GroupCleared,
    KillGroup,
    Leave,
    Member,
    MemberEffect,
    MemberEvent,
    ServiceEnded,
    SignalArrived,
    StartGroup,
    StopGroup,
    SuspendAsked,
    SuspendNode,
    Tell,
    TreeCleared,
    WorkerEnded,
)
from phalanx.report.words import (
    LIMITS,
    describe,
    grace_line,
    restart_line,
    timeout_line,
    waiting_line,
)
from phalanx.say import flush
from phalanx.workers.messages import (
    GroupGone,
    Kill,
    Message,
    OpenStore,
    OutputFinished,
    OutputWarning,
    Ping,
    Pong,
    Ready,
    ServiceLost,
    SignalAll,
    Stop,
    StopTakesTime,
    StopTimedOut,
    StoreRefused,
    Suspended,
    WorkerExited,
    WorkerStarted,
)
from phalanx.workers.process import (
    adopt_orphans,
    boottime,
    children,
    exit_status,
    kernel_wait_channel,
    kill_children,
    reap,
    unblock_signals,
    wakeup_pipe,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.agent.log_paths import LogPaths
    from phalanx.agent.server_process import ServerProcess
    from phalanx.job import JobSpec
    from phalanx.report.decide import Verdict
    from phalanx.workers.process import StartState

__all__ = ["Agent"]

#: The fork server is pinged this often; so many unanswered turns in a row and it is lost. Turns
#: are counted, not seconds: after a pause of our own one turn has passed, not all of them.
PING_INTERVAL_S = 1.0
PINGS_UNANSWERED = 5
#: What serves the workers, for people.
SERVICES = {"store": "the store of the workers", "writer": "the writer of the workers' output"}
#: How long killed processes may take to go, once the fork server is lost.
CLEAR_TIMEOUT_S = 10.0


class _ForCoordinator(Record):
    event: CoordinatorEvent


class _ForMember(Record):
    event: MemberEvent | CoordinatorEffect


class Agent:
    """One node's agent. `run` returns the outcome of the job."""

    def __init__(
        self,
        spec: JobSpec,
        server: ServerProcess,
        start_state: StartState,
        paths: LogPaths,
        say: Callable[[str], None],
        *,
        detail: bool = False,
    ) -> None:
        """`say` prints a line for people; with `detail` there are lines on what is done, too."""
        self._spec = spec
        self._server = server
        self._start_state = start_state
        self._paths = paths
        self._output = Output(spec, server.link, say)
        self._say = self._output.say
        self._detail = self._say if detail else _say_nothing
        self._observer = Observer(spec, os.uname().nodename, paths)
        self._member = Member(os.urandom(8).hex(), os.uname().nodename, spec)
        self._coordinator = Coordinator(Limits.of(spec))
        self._queue: deque[_ForCoordinator | _ForMember] = deque()
        self._outcome: Outcome | None = None
        self._pings_unanswered = 0
        self._next_ping_at = 0.0
        #: Until when children are being cleared after the loss of the fork server.
        self._clearing_until: float | None = None
        #: Children that were ours before we started any; not to be touched.
        self._foreign: set[int] = set()
        #: Ctrl-Z was pressed; carried out at the end of the turn.
        self._suspend_due = False
        self._round = -1
        self._rank_base = 0
        #: Why there is no fork server any more.
        self._lost = ""

    def run(self) -> Outcome:
        """Run the job to its end. Raises StartError if the store's port is refused."""
        self._settle()
        self._poll.register(self._server.link.fileno(), select.POLLIN)
        store = self._spec.store
        self._server.link.send(OpenStore(store.port, store.loopback, self._spec.store_in_worker))
        self._next_ping_at = boottime() + PING_INTERVAL_S
        while self._outcome is None:
            self._turn()
        failed = self._outcome.kind is not OutcomeKind.SUCCEEDED
        while self._is_clearing or not self._output.finish(report_follows=failed):
            self._turn()
        self._server.dismiss()  # it leaves while the rest is tidied up
        return self._outcome

    @property
    def verdict(self) -> Verdict | None:
        """On the last round, if anything failed in it."""
        return self._observer.verdict

    @property
    def _is_clearing(self) -> bool:
        return self._clearing_until not in (None, float("inf"))

    def _settle(self) -> None:
        """Handlers first (PID 1 has no defaults), then be the one who gets the orphans."""
        self._wakeup_fd = wakeup_pipe()  # before there are handlers
        handled = {getattr(signal, name) for name in self._spec.signals_to_handle}
        if signal.SIGHUP in self._start_state.ignored:
            handled.discard(signal.SIGHUP)  # nohup: its wish is kept
        taken_in = handled | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGCONT}
        if signal.SIGTSTP not in self._start_state.ignored:
            taken_in.add(signal.SIGTSTP)
        if self._output.around.stdout_is_terminal or self._output.around.stderr_is_terminal:
            taken_in.add(signal.SIGWINCH)
        for signum in taken_in:
            signal.signal(signum, lambda _signum, _frame: None)
        if signal.SIGTTOU not in handled:
            # `stty tostop`: our few lines are written, as the workers' are; none stops the job.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if signal.SIGINT not in handled | self._start_state.ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would raise anywhere
        self._stop_signals = handled
        unblock_signals()
        adopt_orphans()
        self._foreign = set(children(os.getpid())) - {self._server.pid}
        self._poll = select.poll()
        self._poll.register(self._wakeup_fd, select.POLLIN)

    # The loop

    def _turn(self) -> None:
        now = boottime()
        for fd, _events in self._poll.poll(max(0.0, (self._due_at - now) * 1000 + 1)):
            if fd == self._wakeup_fd:
                self.on_signals(os.read(fd, 4096))
            else:
                self.on_link()
        self.on_time(boottime())
        if self._suspend_due:
            self._stand_still()
        if self._clearing_until is None:
            wanted = select.POLLIN | (select.POLLOUT if self._server.link.wants_write else 0)
            self._poll.modify(self._server.link.fileno(), wanted)

    @property
    def _due_at(self) -> float:
        """The next instant at which time alone changes something."""
        if self._clearing_until is not None:
            return self._clearing_until
        deadline = self._coordinator.deadline
        return self._next_ping_at if deadline is None else min(deadline, self._next_ping_at)

    def on_signals(self, signums: bytes) -> None:
        """Signals have arrived, in this order; a handler did nothing but write their numbers."""
        suspend = False  # unless Ctrl-Z has the last word
        for signum in signums:
            if signum in self._stop_signals:
                # A shell starts `phalanx ... &` in a script with INT ignored, workers included.
                ignored = signum in self._start_state.ignored
                pass_on = int(signal.SIGTERM) if ignored else signum
                self._tell_member(SignalArrived(signum, pass_on))
                self._output.hurry()
                suspend = False
            elif signum in (signal.SIGTSTP, signal.SIGCONT):
                suspend = signum == signal.SIGTSTP
            elif signum == signal.SIGCHLD:
                self._reap()
            elif signum in (signal.SIGUSR1, signal.SIGUSR2):
                self._server.link.send(SignalAll(self._round, signum))
            elif signum == signal.SIGWINCH:
                self._output.resized()
        if suspend:
            self._tell_member(SuspendAsked())
        self._pump()

    def on_link(self) -> None:
        """The fork server has said something, or is gone."""
        if self._clearing_until is not None:
            return
        self._server.link.flush()
        messages, there = self._server.link.receive()
        for message in messages:
            self._on_report(message)
        if not there:
            self._fork_server_lost(self._server.how_it_ended())
        self._pump()

    def on_time(self, now: float) -> None:
        """Some time has passed."""
        if self._clearing_until is not None:
            if now >= self._clearing_until:
                self._cleared()
        else:
            deadline = self._coordinator.deadline
            if deadline is not None and now >= deadline:
                self._queue.append(_ForCoordinator(Ticked()))
            if now >= self._next_ping_at:
                self._ping(now)
        self._pump()

    def _ping(self, now: float) -> None:
        self._next_ping_at = now + PING_INTERVAL_S
        flush()
        self._pings_unanswered += 1
        if self._pings_unanswered > PINGS_UNANSWERED:
            self._fork_server_lost(f"the fork server (pid {self._server.pid}) does not answer")
        else:
            self._server.link.send(Ping(self._pings_unanswered))

    def _stand_still(self) -> None:
        """After this turn's orders: what waits to be heard is heard when we have been continued."""
        from phalanx.agent.job_control import stand_still

        self._suspend_due = False
        if self._outcome is None and self._clearing_until is None:
            said, signums = stand_still(self._server.link, self._wakeup_fd, self._stop_signals)
            for message in said:
                self._on_report(message)
            self.on_signals(signums)

    # Events in

    def _on_report(self, message: Message) -> None:
        match message:
            case Ready(store_port):
                self._tell_member(ForkServerReady(self._offer(store_port)))
            case StoreRefused(port, errno):
                raise _store_refused(port, errno)
            case WorkerExited():
                self._on_exit(message)
            case GroupGone(round, store_port, stuck, tails):
                explained = self._observer.round_over(tails, stuck)
                offer = self._offer(store_port)
                self._tell_member(GroupCleared(round, offer, stuck, explained))
            case StopTakesTime(_, local_ranks, helpers, left_s):
                self._say(waiting_line(local_ranks, helpers, left_s))
            case StopTimedOut(_, local_ranks, helpers):
                self._observer.killing(local_ranks)
                self._say(timeout_line(local_ranks, helpers))
            case OutputWarning(text):
                self._say(text)
            case OutputFinished():
                self._output.finished()
            case ServiceLost(round, name, code, signum, errno):
                status = ExitStatus(code, signum, errno=errno)
                self._tell_member(ServiceEnded(round, SERVICES[name], status))
            case Suspended():
                pass  # too late, or we would have waited for it
            case Pong():
                self._pings_unanswered = 0
            case WorkerStarted(_, local_rank, pid):
                self._detail(f"rank {self._rank_base + local_rank} runs, pid {pid}")
            case _:
                raise InternalError(f"the fork server said {message!r}")

    def _fork_server_lost(self, reason: str) -> None:
        self._lost = reason
        self._tell_member(ForkServerLost(reason))

    def _on_exit(self, exited: WorkerExited) -> None:
        round_, local_rank, status = exited.round, exited.local_rank, exited.status
        rank = self._rank_base + local_rank
        self._detail(f"rank {rank} {describe(status)}")
        if not status.succeeded:
            node, host = self._member.node, self._member.host
            failure = Failure(node, host, round_, local_rank, rank, exited.pid, status)
            self._observer.worker_failed(failure, exited.at)
        self._tell_member(WorkerEnded(round_, local_rank, exited.pid, status, exited.at))

    def _offer(self, store_port: int) -> StoreOffer:
        return StoreOffer(self._spec.store.host, store_port)

    def _tell_member(self, event: MemberEvent) -> None:
        self._queue.append(_ForMember(event))

    def _pump(self) -> None:
        """Let the machines take in what has happened, until there is nothing left to take in."""
        now = boottime()  # one instant for all: what happened first stays first
        while self._queue:
            match self._queue.popleft():
                case _ForMember(event):
                    for effect in self._member.handle(event, now):
                        self._carry_out(effect)
                case _ForCoordinator(event):
                    for wish in self._coordinator.handle(event, now):
                        self._carry_out_wish(wish)

    # Effects out

    def _carry_out_wish(self, wish: CoordinatorEffect) -> None:
        match wish:
            case AnnounceRestart(cause, count, max_restarts, delay_s, window_s, in_window):
                text = restart_line(
                    *(cause, count, max_restarts),
                    delay_s=delay_s,
                    window_s=window_s,
                    in_window=in_window,
                )
                self._say(text)
            case AnnounceGrace(cause, seconds):
                self._say(grace_line(cause, seconds))
            case _:
                self._queue.append(_ForMember(wish))

    def _carry_out(self, effect: MemberEffect) -> None:
        match effect:
            case StartGroup(assignment):
                self._start(assignment)
            case StopGroup(round, signum, timeout_s):
                self._observer.stop_sent(signum, boottime())
                self._server.link.send(Stop(round, signum, timeout_s))
            case KillGroup(round):
                self._server.link.send(Kill(round))
            case SuspendNode():
                self._suspend_due = True
            case ClearTree():
                self._clear_tree()
            case Tell(event):
                self._queue.append(_ForCoordinator(event))
            case Leave(outcome):
                self._outcome = outcome

    def _start(self, assignment: Assignment) -> None:
        spec = self._spec
        self._round = assignment.round
        self._rank_base = assignment.rank_base
        self._detail(starting_line(assignment, spec))
        size = spec.local_world_size
        try:
            attempt = self._paths.start_attempt(assignment.restart_count, assignment.round, size)
        except OSError as error:
            self._say(f"no log and error files in this round: {error}")
            attempt = self._paths.no_files(size)
        order = start_order(spec, assignment, attempt.error_files, os.environ)
        self._server.link.send(self._output.fill_in(order, assignment, attempt))
        self._observer.round_started(assignment, attempt, boottime())

    # Children

    def _reap(self) -> None:
        """Reap all that is dead: the fork server, orphans that came to us, PID 1's strays."""
        for dead in reap():
            self._foreign.discard(dead.si_pid)
            if dead.si_pid == self._server.pid:
                self._server.status = exit_status(dead)
        if self._clearing_until is not None:
            kill_children(self._foreign)
            if not self._left():
                self._cleared()

    def _clear_tree(self) -> None:
        """Without its fork server nothing of the job may live: kill until nothing is left."""
        self._poll.unregister(self._server.link.fileno())
        self._server.link.close()
        self._output.finished()  # the writer, left alone, prints what it has, and goes
        self._clearing_until = boottime() + CLEAR_TIMEOUT_S
        kill_children(self._foreign)
        self._reap()

    def _left(self) -> list[int]:
        return [pid for pid in children(os.getpid()) if pid not in self._foreign]

    def _cleared(self) -> None:
        self._clearing_until = float("inf")
        unfit = tuple((pid, kernel_wait_channel(pid)) for pid in self._left())
        self._observer.round_over((), unfit, self._lost)
        self._tell_member(TreeCleared(unfit))
        self._pump()


def _say_nothing(_text: str) -> None:
    pass


def _store_refused(port: int, errno: int) -> StartError:
    if errno in LIMITS:
        return StartError(
            f"the workers' store cannot be opened: {os.strerror(errno)}",
            LIMITS[errno],
            exit_code=ExitCode.SYSTEM,
        )
    if not port:
        return StartError(
            f"no free port for the workers' store: {os.strerror(errno)}",
            "all ports of /proc/sys/net/ipv4/ip_local_port_range are taken; name one outside it",
            exit_code=ExitCode.UNAVAILABLE,
        )
    return StartError(
        f"port {port} cannot be used: {os.strerror(errno)}",
        "name another one; on one node it can be left out, and a free one is chosen",
        exit_code=ExitCode.UNAVAILABLE,
    )
