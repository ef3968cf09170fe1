"""Builds a model from its description, whatever its source."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from openwafer.diagnostics import did_you_mean, error
from openwafer.training.models.checkpoint_folder import (
    CheckpointFolder,
    describe_saved_model,
    has_saved_buffers,
    load_saved_model,
)
from openwafer.training.models.hollow import build_hollow
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.models.transformers_model import (
    TransformersModel,
    build_transformers_model,
    find_class,
    tokenizer_keys,
)


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


ModelConfig = GptConfig | TransformersModel | CheckpointFolder | UserModule


def build(config: ModelConfig, seed: int) -> nn.Module:
    """Build a model in training mode; its weights are a function of ``config`` and ``seed``.

    Memory is allocated the usual way and in this thread, so a context that redirects allocation
    holds for all of it.

    Raises:
        OpenwaferError: the description does not lead to a model; the text says why.
    """
    torch.manual_seed(seed)
    match config:
        case GptConfig():
            model: nn.Module = ReferenceGpt(config)
        case TransformersModel():
            model = build_transformers_model(config)
        case CheckpointFolder():
            model = load_saved_model(config)
        case UserModule():
            model = build_user_module(config)
    return model.train()


def build_without_weights(config: ModelConfig, seed: int) -> nn.Module | None:
    """As :func:`build`, but for the values of the parameters; none are drawn and none are read.

    Returns:
        ``None`` where the model cannot be built so; see :func:`build_hollow`.
    """
    if not isinstance(config, CheckpointFolder):
        return build_hollow(lambda: build(config, seed))
    torch.manual_seed(seed)
    model = build_hollow(lambda: describe_saved_model(config))
    if model is None or has_saved_buffers(model):
        return None
    return model.train()


def with_vocab_size(config: ModelConfig, vocab_size: int) -> ModelConfig:
    """The same description for a tokenizer of ``vocab_size`` ids, where it leaves that open.

    A language model of the transformers library then has no padding, begin and end tokens but
    those described: the library's defaults are ids of another tokenizer.

    Raises:
        OpenwaferError: the description has a smaller vocabulary than the tokenizer.
    """
    match config:
        case GptConfig():
            given: object = config.vocab_size
            filled: ModelConfig = config if given else replace(config, vocab_size=vocab_size)
        case TransformersModel():
            given = config.config.get("vocab_size")
            open_keys = tokenizer_keys(find_class(config.architecture, config.task), vocab_size)
            filled = replace(config, config={**open_keys, **config.config})
        case CheckpointFolder() | UserModule():
            return config
    if isinstance(given, int) and given < vocab_size:
        raise error(
            "model-vocab-size",
            f"the model knows {given} token ids, the tokenizer {vocab_size}",
            help=f"raise model.vocab_size to {vocab_size}, or leave it out",
        )
    return filled
