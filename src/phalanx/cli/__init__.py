"""From a command line to a `JobSpec`, and what phalanx says to people."""
