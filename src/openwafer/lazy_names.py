"""Names of a package that are loaded when they are first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package.

    Args:
        package: its name.
        homes: for each name the module below the package that has it, and behind a colon what it
            is called there, where that is something else.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'", name=name)
        module, _, there = homes[name].partition(":")
        return getattr(importlib.import_module(f"{package}.{module}"), there or name)

    return load
