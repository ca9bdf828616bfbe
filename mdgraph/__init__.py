"""mdgraph: molecular dynamics with TensorNet potentials, the whole step in one CUDA graph."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdgraph.checkpoints import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `load` on first use, so that importing the package stays fast."""
    if name == "load":
        from mdgraph.checkpoints import load

        return load
    raise AttributeError(f"module 'mdgraph' has no attribute '{name}'")
