"""Exact comparison of tensors, states and traces. Knows nothing of training."""
