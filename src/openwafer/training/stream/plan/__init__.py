"""What a step will do and need, worked out before anything is allocated."""
