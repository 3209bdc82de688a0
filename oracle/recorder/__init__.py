"""Records what a training run computes, without changing it."""
