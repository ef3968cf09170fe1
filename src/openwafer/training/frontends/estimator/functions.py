"""Functions of a script, called with the arguments that their signatures ask for."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from openwafer.diagnostics import error


def call_with(function: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """Call a function with those of the arguments that it asks for by name.

    Raises:
        OpenwaferError: ``estimator-signature`` if it asks for another one.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return function(**given)
    asked = [one for one in parameters if one.kind is not one.VAR_POSITIONAL]
    unknown = [one.name for one in asked if one.name not in given and one.default is one.empty]
    if unknown:
        raise error(
            "estimator-signature",
            f"{place_of(function, what)} asks for {', '.join(unknown)}",
            help=f"{what} gets {', '.join(given)}; bind others by functools.partial",
        )
    return function(**{one.name: given[one.name] for one in asked if one.name in given})


def place_of(function: Callable[..., Any], what: str) -> str:
    """A function and where it stands, for errors."""
    bare = inspect.unwrap(getattr(function, "func", function))
    code = getattr(bare, "__code__", None)
    name = getattr(bare, "__name__", type(bare).__name__)
    called = what if name == what else f"{what} ({name})"
    return called if code is None else f"{called} at {code.co_filename}:{code.co_firstlineno}"
