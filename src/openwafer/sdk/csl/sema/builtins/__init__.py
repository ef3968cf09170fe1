"""Builtins: their contract, those that compute with values and types, and those of the machine."""
