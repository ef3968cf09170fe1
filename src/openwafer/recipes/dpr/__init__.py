"""Docstrings find the functions that they belong to."""
