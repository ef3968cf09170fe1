"""A saved model is pruned at once and written again."""
