"""signals_itself.py NAME: sends itself a signal, with no handler in the way."""

import os
import signal
import sys

signum = getattr(signal, sys.argv[1])
if signum not in (signal.SIGKILL, signal.SIGSTOP):
    signal.signal(signum, signal.SIG_DFL)
os.kill(os.getpid(), signum)
