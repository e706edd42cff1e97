"""Octets of all kinds, escapes and half characters before the end."""

import os

os.write(
    2, bytes(range(256)) * 4 + b"\x1b[2J\x1b]0;owned\x07\x1b[31mred\x1b[0m \xe2\x80\xae\xe2\x82\n"
)
raise ValueError("\x1b[2Jcleared\x07 \u202e backwards")
