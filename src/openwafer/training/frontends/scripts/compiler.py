"""What scripts tell the vendor's compiler and its cluster: it is taken, and nothing reads it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["CompilerSettings", "name_scope"]


class CompilerSettings:
    """Settings of the vendor's compiler, at any depth: a script sets them, nothing reads them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = CompilerSettings()
        return self.__dict__[name]


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Name a part of a step, for compilers that show it; nothing here does."""
    yield
