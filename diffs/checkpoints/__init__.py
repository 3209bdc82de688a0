"""Checkpoints of every format as named parts, read lazily, and compared at the speed of memory."""
