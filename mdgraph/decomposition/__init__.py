"""One system in several domains, each with its own atoms and copies of those around them."""

from mdgraph.decomposition.evaluator import (
    DecomposedEvaluator,
    atoms_here,
    divided_parts,
    grid_of,
    in_domains,
    join_ranks,
    may_be_whole,
)

__all__ = [
    "DecomposedEvaluator",
    "atoms_here",
    "divided_parts",
    "grid_of",
    "in_domains",
    "join_ranks",
    "may_be_whole",
]
