"""A traceback that was logged and survived says nothing of the end."""

import sys
import traceback

try:
    int("x")
except ValueError:
    traceback.print_exc()
for step in range(40):
    print(f"step {step}", file=sys.stderr)
sys.exit(9)
