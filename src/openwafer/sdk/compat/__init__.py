"""The vendor's module names for scripts that run unmodified, mapped to this package.

Nothing is installed under those names: :mod:`openwafer.sdk.compat.finder` provides them inside of
one process, the one that `cs_python` starts.
"""
