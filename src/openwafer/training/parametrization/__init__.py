"""muP: initial values, learning rates and multipliers that let settings carry over widths."""
