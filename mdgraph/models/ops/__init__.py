"""Operations of the network, differentiable any number of times; on CUDA by kernels."""
