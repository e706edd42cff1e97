"""os.abort, with faulthandler."""

import faulthandler
import os

faulthandler.enable()
os.abort()
