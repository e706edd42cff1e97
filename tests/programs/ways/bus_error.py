"""Uses a mapped file behind its end."""

import mmap
import tempfile

with tempfile.TemporaryFile() as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    mapped[5000] = 1
