"""Callbacks that record a run from inside another project's trainer, as `oracle.record` does a block."""
