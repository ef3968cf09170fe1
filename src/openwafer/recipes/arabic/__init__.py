"""A law of compute for a mix of two languages."""
