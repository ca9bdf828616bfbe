"""Triton kernels of features, for models that are differentiated."""
