"""Biased runs: their configuration, and the files COLVAR and HILLS."""
