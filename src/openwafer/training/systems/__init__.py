"""How the ranks of a run, or of a user's own loop, work as one: who tells whom what to do."""
