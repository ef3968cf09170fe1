"""A Universal Transformer whose tokens halt by themselves."""
