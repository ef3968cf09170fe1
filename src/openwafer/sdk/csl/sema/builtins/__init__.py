"""Builtins that compute with values and types, without the machine."""
