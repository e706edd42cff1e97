"""The keyboard of the worker that has the terminal (`--tty`).

While it runs, the terminal takes every key as it is pressed and echoes none: the worker's own
terminal does that, and makes Ctrl-C a signal to the worker. What is printed is still translated at
the terminal's end, so that other lines look as they should.
"""

from __future__ import annotations

import os
import select
import termios

__all__ = ["Relay"]

KEYBOARD = 0


class Relay:
    """Between our standard input, which is a terminal, and the master side of the worker's."""

    def __init__(self, master: int, poll: select.poll) -> None:
        self.master = master
        self._poll = poll
        self._typed = b""
        self._is_gone = False
        self._before = termios.tcgetattr(KEYBOARD)
        modes = termios.tcgetattr(KEYBOARD)
        modes[0] &= ~(termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON)
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(KEYBOARD, termios.TCSADRAIN, modes)
        self._poll.register(KEYBOARD, select.POLLIN)

    def keys(self) -> None:
        """Keys have been pressed."""
        try:
            typed = os.read(KEYBOARD, 4096)
        except OSError:
            typed = b""
        if not typed:
            self._is_gone = True
            self._unregister()
            return
        self._typed += typed
        self.pass_on()
        if self._typed:
            self._unregister()

    def pass_on(self) -> None:
        """As much as the worker's terminal takes; the rest when it has read some."""
        try:
            while self._typed:
                self._typed = self._typed[os.write(self.master, self._typed) :]
        except BlockingIOError:
            return
        except OSError:
            self._typed = b""
        if not self._is_gone:
            self._poll.register(KEYBOARD, select.POLLIN)

    @property
    def is_waiting(self) -> bool:
        return bool(self._typed)

    def _unregister(self) -> None:
        try:
            self._poll.unregister(KEYBOARD)
        except KeyError:
            pass

    def restore(self) -> None:
        """The terminal as it was."""
        self._unregister()
        try:
            termios.tcsetattr(KEYBOARD, termios.TCSADRAIN, self._before)
        except OSError:
            pass
