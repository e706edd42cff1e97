"""A signal for which it has no handler."""

import os
import signal

os.kill(os.getpid(), signal.SIGUSR1)
