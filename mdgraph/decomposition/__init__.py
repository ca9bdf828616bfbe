"""One system in several domains, each with its own atoms and copies of those around them."""

from mdgraph.decomposition.dividing import (
    atoms_here,
    divided_parts,
    grid_of,
    in_domains,
    may_be_whole,
)
from mdgraph.decomposition.evaluator import DecomposedEvaluator
from mdgraph.decomposition.server import join_ranks

__all__ = [
    "DecomposedEvaluator",
    "atoms_here",
    "divided_parts",
    "grid_of",
    "in_domains",
    "join_ranks",
    "may_be_whole",
]
