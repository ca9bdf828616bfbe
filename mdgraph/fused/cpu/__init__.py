"""Kernels for CPUs, compiled by numba."""
