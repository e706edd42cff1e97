"""A terminal with a shell in it, into which a test types: a pty and bash, with job control.

Nothing is echoed, and the prompt is empty: what is on the screen is what programs print.
"""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from harness import PHALANX, SLACK, eventually, processes_with, python_path

__all__ = ["CTRL_BACKSLASH", "CTRL_C", "CTRL_Z", "Terminal", "phalanx", "state_of"]

CTRL_C = "\x03"
CTRL_Z = "\x1a"
CTRL_BACKSLASH = "\x1c"
BASH = ("bash", "--norc", "--noprofile", "--noediting", "-i")
#: Run as the leader of a new session: make standard input its terminal, and become the program.
TAKES_THE_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)


def phalanx(*words: object, launcher: Sequence[str] = PHALANX) -> str:
    """A command line for the shell."""
    return shlex.join([*launcher, *map(str, words)])


def stat_of(pid: int) -> list[str]:
    """State letter, parent and so on of a process, as in /proc/PID/stat; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def state_of(pid: int) -> str:
    return stat_of(pid)[0]


class Terminal:
    """Use as a context manager: at the end nothing that was started in it is left."""

    def __init__(self, cwd: Path, *, program: Sequence[str] = BASH) -> None:
        self.mark = f"PHALANX_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self._master, slave = pty.openpty()
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        shells = {"PS1": "", "PS2": "", "HISTFILE": "", "TERM": "xterm"}
        environment = {**os.environ, **python_path(), **shells}
        self.shell = subprocess.Popen(
            [sys.executable, "-c", TAKES_THE_TERMINAL, *program],
            cwd=cwd,
            env={**environment, name: value},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""
        #: Up to where `expect` has read the screen.
        self._read_to = 0
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        while not self._closing.is_set():
            if not poll.poll(20):
                continue
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # nobody has the terminal open any more
                return
            self.screen += chunk.decode(errors="replace").replace("\r\n", "\n")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        for _ in range(200):
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.shell.wait(10)
        self.hang_up()

    # Typing and reading

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def line(self, text: str) -> None:
        self.press(f"{text}\n")

    def expect(self, text: str, timeout: float = 30.0) -> str:
        """Wait until `text` is on the screen, after what was expected before; what came before it.

        The next call looks at what comes after it.
        """
        try:
            found = eventually(lambda: self.screen.find(text, self._read_to) + 1, timeout)
        except AssertionError:
            raise AssertionError(f"no {text!r} on the screen, which is {self.screen!r}") from None
        before = self.screen[self._read_to : found - 1]
        self._read_to = found - 1 + len(text)
        return before

    def ask(self, words: str) -> str:
        """What the shell expands these words to, for example `$?`."""
        self.line(f'echo "<<{words}>>"')
        self.expect("<<")
        return self.expect(">>")

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size, as a terminal program does; programs get SIGWINCH."""
        termios.tcsetwinsize(self._master, (rows, columns))

    def hang_up(self) -> None:
        """Close the terminal, as a terminal program does when its window is closed."""
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join()
            os.close(self._master)

    # What runs in it

    def processes(self) -> dict[int, str]:
        """All living processes that were started in it, and their command lines."""
        return processes_with(self.mark)

    @property
    def fork_server(self) -> int:
        """The pid of the job's fork server, waiting until there is one."""
        return self._named("phalanx fork server")

    @property
    def services(self) -> set[int]:
        """Those of our processes that are not stopped with the job: fork server and writer."""
        writers = {pid for pid, line in self.processes().items() if line == "phalanx writer"}
        return {self.fork_server} | writers

    def _named(self, title: str) -> int:
        def look() -> int:
            return next((pid for pid, line in self.processes().items() if line == title), 0)

        return eventually(look, what=title)

    @property
    def agent(self) -> int:
        """The pid of the job's agent."""
        return int(stat_of(self.fork_server)[1])

    def nothing_left(self, *but: int, timeout: float = 2.0 * SLACK) -> None:
        """Wait until no process is alive but these (the shell, for example)."""
        eventually(
            lambda: not self.processes().keys() - set(but),
            timeout,
            f"all gone, but {self.processes()}; screen {self.screen!r}",
        )
