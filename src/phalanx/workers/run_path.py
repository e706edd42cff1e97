"""The program of a `--run-path` worker: run a file as `__main__`, and leave an error file.

As torchrun's `--run-path` does, the script is run by runpy under what torch's `@record` does: an
exception is written to the file that TORCHELASTIC_ERROR_FILE names, in torch's format, and
faulthandler is on. It is run as a plain file and imports nothing of phalanx.
"""

import faulthandler
import json
import os
import runpy
import sys
import time
import traceback


def _write_error_file(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    stack = "".join(traceback.format_exception(error))
    details = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": details}
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump({"message": message}, file)
    except OSError as problem:
        print(f"phalanx: the error file could not be written: {problem}", file=sys.stderr)


def _main() -> None:
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file is nobody's business
    sys.argv = sys.argv[1:]
    faulthandler.enable()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        _write_error_file(error)
        raise


_main()
