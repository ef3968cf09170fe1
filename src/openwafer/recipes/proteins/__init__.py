"""Proteins, with hidden amino acids."""
