"""Accelerators and CPUs of this node."""
