"""Measures and pictures of what a run produced."""
