"""The fork server, what it starts, how that is stopped, and what a worker is given."""
