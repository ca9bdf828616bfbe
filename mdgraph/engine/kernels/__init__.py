"""Triton kernels of a step: motion of atoms, thermostats, barostats and sums over systems."""
