"""mdgraph: molecular dynamics with TensorNet potentials, the whole step in one CUDA graph."""

__version__ = "0.1.0"
