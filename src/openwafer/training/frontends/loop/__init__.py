"""A user's own loop: what it calls reaches the parameter store."""
