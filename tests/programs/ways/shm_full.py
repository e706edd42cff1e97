"""Uses more of /dev/shm than there is."""

import mmap
import os

fd = os.open("/dev/shm/phalanx_test", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 64 * 1024 * 1024)
mapped = mmap.mmap(fd, 64 * 1024 * 1024)
for at in range(0, len(mapped), 4096):
    mapped[at] = 1
