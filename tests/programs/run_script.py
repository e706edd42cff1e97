"""A wrapper as people write them: runs the real script in a child and hands its exit code on.

    LAUNCHER run_script.py SCRIPT [ARGUMENTS...]

It does nothing about signals. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], check=False).returncode)
