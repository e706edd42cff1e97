"""Phalanx starts a program as a group of ranked workers and keeps the group whole."""

__all__ = ["__version__"]

__version__ = "0.1.0"
