"""What scripts find in ``cbtorch.core``: the modules of queries and modes, and names of parts."""

from collections.abc import Iterator
from contextlib import contextmanager

from openwafer.training.frontends.session import cb_model, modes

__all__ = ["cb_model", "modes", "name_scope"]


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Name a part of a step, for compilers that show it; nothing here does."""
    yield
