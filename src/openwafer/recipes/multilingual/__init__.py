"""Two languages in fixed shares."""
