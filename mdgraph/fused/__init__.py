"""The fused form of TensorNet: tabulated radial functions, hand-written backward, no autograd."""
