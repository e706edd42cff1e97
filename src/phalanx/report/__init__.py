"""PURE: how a job ended, in words and as an exit code."""
