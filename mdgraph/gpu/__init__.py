"""CUDA graphs, Triton's launches and the small pieces of code that all kernels share."""
