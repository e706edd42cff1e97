"""What torch's @record leaves: an error file, and nothing else that can be read."""

import json
import os
import traceback


def main():
    raise ValueError("told in the error file")


try:
    main()
except Exception as error:
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": traceback.format_exc(), "timestamp": "1796126273"},
    }
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)
    os._exit(1)
