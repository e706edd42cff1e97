"""What the C++ library says of an exception that nobody caught."""

import os
import sys

print("terminate called after throwing an instance of 'std::runtime_error'", file=sys.stderr)
print("  what():  the device is lost", file=sys.stderr, flush=True)
os.abort()
