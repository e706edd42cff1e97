"""The fork server's loop, turn by turn, where the order of what it sees matters.

It runs in a process of its own here as well (it reaps all children of its process), with a poll
that says what the test wants it to have seen.
"""

from __future__ import annotations

import subprocess
import sys

WORLD = """
import os, select, sys
from phalanx.workers.fork_server import ForkServer
from phalanx.workers.messages import GroupGone, Start
from phalanx.workers.process import StartState

LISTENER = 500

class Link:
    wants_write = False
    said = []
    def fileno(self): return 400
    def send(self, message): self.said.append(message)
    def close(self): pass

class Store:
    port = 4000
    served = 0
    def filenos(self): return [LISTENER]
    def renew(self): pass
    def serve(self): os._exit(0)

class Poll:
    def __init__(self): self.registered = set(); self.next = []
    def register(self, fd, mask): self.registered.add(fd)
    def unregister(self, fd): self.registered.remove(fd)
    def modify(self, fd, mask): pass
    def poll(self, wait_ms): return self.next

link = Link()
server = ForkServer(link, Store(), StartState(frozenset()))
server._poll = server._store._poll = server._group._poll = poll = Poll()
server._wakeup_fd, wakeup = os.pipe()
"""


def run_world(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WORLD + program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_client_that_comes_as_its_round_ends_does_not_start_a_store() -> None:
    """Its connection and the end of the group are in one turn; the next round would have two."""
    said = run_world(
        """
server._start(Start(0, ((0, ("true",), {}, ()),), False, 30.0))
(worker,) = server._group.local_ranks
os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
os.write(wakeup, b"!")
poll.next = [(server._wakeup_fd, select.POLLIN), (LISTENER, select.POLLIN)]
server._turn()
assert any(isinstance(message, GroupGone) for message in link.said), link.said
print(server._store.pid, LISTENER in poll.registered)
"""
    )

    assert said == "None False"


def test_a_client_in_a_running_round_starts_the_store_once() -> None:
    said = run_world(
        """
server._start(Start(0, ((0, ("sleep", "1000"), {}, ()),), False, 30.0))
(worker,) = server._group.local_ranks
poll.next = [(LISTENER, select.POLLIN)]
server._turn()
first = server._store.pid
server._turn()
print(first is not None, server._store.pid == first, LISTENER in poll.registered)
os.kill(worker, 9)
"""
    )

    assert said == "True True False"


def test_what_turns_up_during_the_kill_is_killed() -> None:
    """A process that was forked while the tree was gone through arrives when its parent is dead."""
    said = run_world(
        """
import subprocess
from phalanx.workers.messages import Kill
server._start(Start(0, ((0, ("sleep", "1000"), {}, ()),), False, 30.0))
(worker,) = server._group.local_ranks
server._obey(Kill(0))
late = subprocess.Popen(["sleep", "1000"])
for pid in (worker, late.pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.write(wakeup, b"!")
    poll.next = [(server._wakeup_fd, select.POLLIN)]
    server._turn()
print(any(isinstance(message, GroupGone) for message in link.said))
late.returncode = 0
"""
    )

    assert said == "True"
