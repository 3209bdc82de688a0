"""One file a check: `ABOUT` says what it is about, `judge` makes a finding of the evidence.

A further dimension is further files here, and its name in `oracle.evaluate.schema.DIMENSIONS`.
"""
