"""Classes that a YAML names by dotted paths, or as the Model Zoo does where it is installed."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from openwafer.config.document import MappingNode
from openwafer.config.reading import plain, read_arguments
from openwafer.diagnostics import did_you_mean, error
from openwafer.source import Span
from openwafer.training.frontends.model_zoo.samples import GptHDF5MapDataProcessor
from openwafer.training.frontends.scripts.program import kind_of

_OURS = {"GptHDF5MapDataProcessor": GptHDF5MapDataProcessor}


def imported(path: str, span: Span) -> Callable[..., Any]:
    """The class or function that a dotted path names.

    Raises:
        OpenwaferError: ``trainer-import``.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as cause:
        raise error(
            "trainer-import",
            f"cannot import {module_name}: {cause}",
            span=span,
            help="install it, or put its file beside the YAML",
        ) from cause
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n in dir(module) if not n.startswith("_")]
        message = f"{module_name} has no class or function {name!r}"
        raise error("trainer-import", message, span=span, help=did_you_mean(name, names))
    made: Callable[..., Any] = found
    return made


def _registry(what: str, name: str, span: Span) -> Any:
    """The Model Zoo's list of its own classes."""
    # Its parent has to be there for the question itself.
    is_there = find_spec("cerebras") is not None and find_spec("cerebras.modelzoo") is not None
    if not is_there:
        raise error(
            "trainer-import",
            f"the {what} {name!r} is the Model Zoo's own, which is not installed here",
            span=span,
            help="write a dotted path, as transformers.GPT2LMHeadModel or my_file.MyClass; or put "
            "the Model Zoo on PYTHONPATH",
        )
    return import_module("cerebras.modelzoo.registry").registry


def model_maker(name: str, node: MappingNode, span: Span) -> Callable[[], nn.Module]:
    """What makes a model.

    Args:
        name: a dotted path, or a name of the Model Zoo.
        node: its options, without its name.
        span: where the name stands.

    Raises:
        OpenwaferError: ``trainer-import``, and what a config's keys raise.
    """
    if "." not in name:
        kind = _registry("model", name, span).get_model_class(name)
        return _checked_maker(name, span, lambda: kind({"name": name, **_options(node)}))
    kind = imported(name, span)
    config = getattr(kind, "config_class", None)
    if config is not None:
        return _checked_maker(name, span, lambda: kind(_library_config(config, node)))
    options = read_arguments(node, kind, span)
    return _checked_maker(name, span, lambda: kind(**options))


def _options(node: MappingNode) -> dict[str, Any]:
    found: Any = plain(node)
    return dict(found)


def _library_config(config: Any, node: MappingNode) -> Any:
    """A config of the transformers library, which itself takes any key."""
    known = {*inspect.signature(config).parameters, *config().to_dict()}
    for key, entry in node.entries.items():
        if key not in known:
            raise error(
                "config-unknown-key",
                f"{config.__name__} has no '{key}'",
                span=entry.key_span,
                help=did_you_mean(key, known),
            )
    return config(**_options(node))


def _checked_maker(name: str, span: Span, make: Callable[[], Any]) -> Callable[[], nn.Module]:
    def checked() -> nn.Module:
        model = make()
        if isinstance(model, nn.Module):
            return model
        raise error(
            "trainer-import",
            f"{name} made {kind_of(model)}",
            span=span,
            help="name a torch.nn.Module whose forward takes a batch and returns its loss",
        )

    return checked


def data_processor(
    name: str, node: MappingNode, span: Span, model_name: str
) -> Callable[[], Iterable[Any]]:
    """What makes a loader.

    Args:
        name: of a class or function: a dotted path, one of ours, or a name of the Model Zoo.
        node: its options, without its name.
        span: where the name stands.
        model_name: by which the Model Zoo lists its own.

    Raises:
        OpenwaferError: ``trainer-import``, ``trainer-data``, and what a config's keys raise.
    """
    make: Callable[[], Any]
    if name in _OURS or "." in name:
        kind: Any = _OURS.get(name) or imported(name, span)
        make = partial(kind, **read_arguments(node, kind, span))
    else:
        found = _registry("data processor", name, span).get_data_processors_map(model_name)
        if name not in found:
            message = f"the Model Zoo has no data processor {name!r} for {model_name!r}"
            raise error("trainer-import", message, span=span, help=did_you_mean(name, found))
        make = partial(found[name], _options(node))

    def loader() -> Iterable[Any]:
        processor = make()
        is_loader = not hasattr(processor, "create_dataloader")
        batches: Iterable[Any] = processor if is_loader else processor.create_dataloader()
        return batches

    return loader
