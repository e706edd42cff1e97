"""Reads address 0; with a first argument, faulthandler tells where."""

import ctypes
import faulthandler
import sys

if len(sys.argv) > 1:
    faulthandler.enable()


def read_nothing():
    ctypes.string_at(0)


read_nothing()
