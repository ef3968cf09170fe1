"""Host scripts compute as numpy 1 did, for which the public ones were written."""
