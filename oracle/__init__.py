"""Differential testing of wrapped trainers against the reference loop."""

__version__ = "0.1.0"
