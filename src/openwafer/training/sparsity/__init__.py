"""Sparse weights: which positions are kept, how they are packed, and products that skip zeros."""
