"""One system in several domains, each with its own atoms and copies of those around them."""

from mdgraph.decomposition.evaluator import DecomposedEvaluator, in_domains

__all__ = ["DecomposedEvaluator", "in_domains"]
