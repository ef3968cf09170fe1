"""The Model Zoo's trainer, from Python and from its YAML, on the present style.

``Trainer`` is in :mod:`trainer`, what it calls in :mod:`callbacks`, and its YAML in :mod:`recipe`.
"""
