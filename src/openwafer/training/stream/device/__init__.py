"""Where a step computes: memory, streams, and the weights that are there."""
