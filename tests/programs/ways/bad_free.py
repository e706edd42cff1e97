"""Gives glibc something back that never was its own."""

import ctypes

libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(64)
libc.free(ctypes.c_void_p(ctypes.addressof(buffer) + 16))
