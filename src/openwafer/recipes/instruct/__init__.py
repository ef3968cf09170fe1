"""Instruction tuning on questions about Python's own functions."""
