"""A directory where the error file should be."""

import os

os.mkdir(os.environ["TORCHELASTIC_ERROR_FILE"])
raise LookupError("the error file is a directory")
