"""A trainer's semantics, knob by knob, each value proven on a probe that tells it from every other value."""
