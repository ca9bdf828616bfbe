"""One system in several domains, each with its own atoms and copies of those around them."""

from mdgraph.decomposition.evaluator import (
    DecomposedEvaluator,
    atoms_here,
    grid_of,
    in_domains,
    join_ranks,
)

__all__ = ["DecomposedEvaluator", "atoms_here", "grid_of", "in_domains", "join_ranks"]
