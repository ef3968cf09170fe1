"""Models by import path."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from openwafer.diagnostics import did_you_mean, error


@dataclass(frozen=True)
class UserModule:
    """A user's own module.

    Attributes:
        factory: ``package.module:name`` of a subclass of ``nn.Module``, or of a function that is
            annotated to return one; the working directory is searched first.
        kwargs: its keyword arguments.
    """

    kind: Literal["module"] = field(default="module", kw_only=True)
    factory: str
    kwargs: Mapping[str, object] = field(default_factory=dict)


def build_user_module(description: UserModule) -> nn.Module:
    """Import the factory and call it; what its own code raises comes through as it is.

    Raises:
        OpenwaferError: the path cannot be imported, the arguments do not fit, or the result is no
            module.
    """
    factory = import_factory(description.factory)
    _require_fitting(description, factory)
    model = factory(**description.kwargs)
    if not isinstance(model, nn.Module):
        raise error(
            "model-import",
            f"{description.factory} returned {type(model).__name__}, not a torch.nn.Module",
            help="let it return the model itself",
        )
    return model


def import_factory(path: str) -> Callable[..., object]:
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise error(
            "model-import",
            f"{path!r} is not of the form 'package.module:factory'",
            help="name a class or function in a module, such as my_models.tiny:build",
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as cause:
        raise error(
            "model-import",
            f"cannot import {module_name}: {cause}",
            notes=(f"searched from the working directory, {folder}",),
            help="install it, or start in the folder that holds it",
        ) from cause
    if not hasattr(module, attribute):
        names = [name for name in dir(module) if not name.startswith("_")]
        raise error(
            "model-import",
            f"{module.__file__} defines no {attribute!r}",
            help=did_you_mean(attribute, names),
        )
    factory: Callable[..., object] = getattr(module, attribute)
    _require_module(path, factory)
    return factory


def _require_module(path: str, factory: object) -> None:
    """Refuse before its call what was not written to make a module, such as ``os:system``."""
    if inspect.isclass(factory):
        returned: object = factory
    elif inspect.isfunction(factory):
        returned = _annotated_return(factory)
    else:
        returned = None
    if inspect.isclass(returned) and issubclass(returned, nn.Module):
        return
    found = type(factory).__name__
    if inspect.isfunction(factory):
        found = f"a function that is annotated to return {_named(returned)}"
    elif inspect.isclass(factory):
        found = f"the class {_named(factory)}"
    raise error(
        "model-import",
        f"{path} is {found}, which makes no torch.nn.Module",
        help="name a subclass of torch.nn.Module, or a function that says it returns one: "
        "def make_net() -> torch.nn.Module",
    )


def _annotated_return(function: Callable[..., object]) -> object:
    try:
        return inspect.signature(function, eval_str=True).return_annotation
    except NameError:
        return inspect.signature(function).return_annotation


def _named(returned: object) -> str:
    if returned is inspect.Signature.empty:
        return "nothing in particular"
    return returned.__qualname__ if inspect.isclass(returned) else str(returned)


def _require_fitting(description: UserModule, factory: Callable[..., object]) -> None:
    signature = inspect.signature(factory)
    try:
        signature.bind(**description.kwargs)
    except TypeError as cause:
        raise error(
            "model-arguments",
            f"{description.factory} cannot be called so: {cause}",
            notes=(f"it accepts: {signature}",),
            help="correct model.kwargs",
        ) from cause
