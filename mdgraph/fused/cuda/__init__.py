"""Kernels for CUDA devices, in Triton; its interpreter runs them on a CPU for tests."""
