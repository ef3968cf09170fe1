"""Sparse weights: masks that a run draws, updates and goes back with, and their products."""
