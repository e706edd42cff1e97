"""An error file that is none, and a traceback on stderr."""

import os

with open(os.environ["TORCHELASTIC_ERROR_FILE"], "wb") as file:
    file.write(b"[" * 100_000 + b"\0\xff{")
raise LookupError("told on stderr")
