"""A model's forward in stages, each on a system of its own that has no more than its weights."""
