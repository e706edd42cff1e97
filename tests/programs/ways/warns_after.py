"""Lines behind the traceback: the interpreter's own clean-up."""

import atexit
import sys
import warnings


class Ugly:
    def __del__(self):
        raise RuntimeError("in a destructor")


def clean_up():
    warnings.warn("4 leaked semaphore objects to clean up at shutdown", stacklevel=1)
    print(
        "[W1201 10:00:00 ProcessGroup.cpp:1] destroy_process_group was not called", file=sys.stderr
    )


ugly = Ugly()
atexit.register(clean_up)
raise ArithmeticError("the true end")
