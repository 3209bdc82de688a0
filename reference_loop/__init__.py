"""The reference loop: a training step in which every decision is in the open."""
