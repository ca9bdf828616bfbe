"""Distillation: a small network that does what a sum of potentials, or a large one, does."""
