"""An exit code with a meaning of its own, and a last word."""

import sys

print("no licence left", file=sys.stderr)
sys.exit(42)
