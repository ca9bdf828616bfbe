"""Runs: a configuration in, a folder out."""
