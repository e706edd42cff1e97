"""A thread takes the process with it."""

import os
import sys
import threading


def work():
    try:
        raise OSError("the thread's disk is gone")  # noqa: TRY301
    except OSError:
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
        os._exit(5)


threading.Thread(target=work, name="loader").start()
