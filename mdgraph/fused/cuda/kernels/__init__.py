"""Triton kernels and device functions; who launches them lies one level up."""
