"""Preferences between real lines of source text and scrambled ones."""
