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

from phalanx.agent.children import Children
from phalanx.agent.observer import Observer
from phalanx.agent.output import Output
from phalanx.agent.reports import Reports
from phalanx.agent.signal_intake import SignalIntake
from phalanx.agent.start_order import start_order, starting_line
from phalanx.outcome import Outcome, OutcomeKind
from phalanx.record import Record
from phalanx.rendezvous.coordinator import Coordinator, Limits
from phalanx.rendezvous.effects import (
    AnnounceGrace,
    AnnounceRestart,
    Assignment,
    CoordinatorEffect,
)
from phalanx.rendezvous.events import CoordinatorEvent, Ticked
from phalanx.rendezvous.member import (
    ClearTree,
    ForkServerLost,
    KillGroup,
    Leave,
    Member,
    MemberEffect,
    MemberEvent,
    SignalArrived,
    StartGroup,
    StopGroup,
    SuspendAsked,
    SuspendNode,
    Tell,
    TreeCleared,
)
from phalanx.report.words import grace_line, restart_line
from phalanx.say import flush
from phalanx.workers.messages import Kill, Message, OpenStore, Ping, Pong, SignalAll, Stop
from phalanx.workers.process import boottime

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
        self._reports = Reports(
            self._member, spec.store.host, self._observer, self._output, self._detail
        )
        self._coordinator = Coordinator(Limits.of(spec))
        self._queue: deque[_ForCoordinator | _ForMember] = deque()
        self._outcome: Outcome | None = None
        self._pings_unanswered = 0
        self._next_ping_at = 0.0
        #: Ctrl-Z was pressed; carried out at the end of the turn.
        self._suspend_due = False
        self._round = -1
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
        while self._children.are_being_cleared or not self._output.finish(report_follows=failed):
            self._turn()
        if failed:
            self._output.restore_terminal()
        self._server.dismiss()  # it leaves while the rest is tidied up
        return self._outcome

    @property
    def verdict(self) -> Verdict | None:
        """On the last round, if anything failed in it."""
        return self._observer.verdict

    def _settle(self) -> None:
        """Handlers first (PID 1 has no defaults), then be the one who gets the orphans."""
        around = self._output.around
        on_terminal = around.stdout_is_terminal or around.stderr_is_terminal
        self._signals = SignalIntake(
            self._spec.signals_to_handle, self._start_state, resizes=on_terminal
        )
        self._children = Children(self._server)
        self._poll = select.poll()
        self._poll.register(self._signals.fd, select.POLLIN)

    # The loop

    def _turn(self) -> None:
        now = boottime()
        for fd, _events in self._poll.poll(max(0.0, (self._due_at - now) * 1000 + 1)):
            if fd == self._signals.fd:
                self.on_signals(self._signals.read())
            else:
                self.on_link()
        self.on_time(boottime())
        if self._suspend_due:
            self._stand_still()
        if self._children.clear_by is None:
            wanted = select.POLLIN | (select.POLLOUT if self._server.link.wants_write else 0)
            self._poll.modify(self._server.link.fileno(), wanted)

    @property
    def _due_at(self) -> float:
        """The next instant at which time alone changes something."""
        if self._children.clear_by is not None:
            return self._children.clear_by
        deadline = self._coordinator.deadline
        return self._next_ping_at if deadline is None else min(deadline, self._next_ping_at)

    def on_signals(self, signums: bytes) -> None:
        """Signals have arrived, in this order; a handler did nothing but write their numbers."""
        suspend = False  # unless Ctrl-Z has the last word
        for signum in signums:
            if signum in self._signals.stop:
                self._tell_member(SignalArrived(signum, self._signals.for_workers(signum)))
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
        if self._children.clear_by is not None:
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
        if self._children.clear_by is not None:
            if now >= self._children.clear_by:
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
        if self._outcome is None and self._children.clear_by is None:
            said, signums = stand_still(self._server.link, self._signals.fd, self._signals.stop)
            for message in said:
                self._on_report(message)
            self.on_signals(signums)

    # Events in

    def _on_report(self, message: Message) -> None:
        if isinstance(message, Pong):
            self._pings_unanswered = 0
            return
        event = self._reports.take_in(message)
        if event is not None:
            self._tell_member(event)

    def _fork_server_lost(self, reason: str) -> None:
        self._lost = reason
        self._tell_member(ForkServerLost(reason))

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
                self._output.release_keyboard()
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
        self._reports.rank_base = assignment.rank_base
        self._detail(starting_line(assignment, spec))
        size = spec.local_world_size
        try:
            attempt = self._paths.start_attempt(assignment.restart_count, assignment.round, size)
        except OSError as error:
            why = error.strerror or str(error)
            self._say(f"no log and error files in this round: {why}: {error.filename}")
            attempt = self._paths.no_files(size)
        order = start_order(spec, assignment, attempt.error_files, os.environ)
        self._server.link.send(self._output.fill_in(order, assignment, attempt))
        self._observer.round_started(assignment, attempt, boottime())

    # Children

    def _reap(self) -> None:
        if self._children.reap():
            self._cleared()

    def _clear_tree(self) -> None:
        """Without its fork server nothing of the job may live: kill until nothing is left."""
        self._poll.unregister(self._server.link.fileno())
        self._server.link.close()
        self._output.finished()  # the writer, left alone, prints what it has, and goes
        if self._children.clear(boottime()):
            self._cleared()

    def _cleared(self) -> None:
        unfit = self._children.give_up()
        self._observer.round_over((), unfit, self._lost)
        self._tell_member(TreeCleared(unfit))
        self._pump()


def _say_nothing(_text: str) -> None:
    pass
