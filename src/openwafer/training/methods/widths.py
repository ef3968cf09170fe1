"""The same description of a model with other widths, as muP's base and sweeps want it."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from openwafer.diagnostics import did_you_mean, error
from openwafer.training.models import (
    CheckpointFolder,
    GptConfig,
    ModelConfig,
    TransformersModel,
    UserModule,
)
from openwafer.training.models.build import import_factory
from openwafer.training.models.transformers_model import (
    REFUSALS,
    accepted_keys,
    find_class,
    own_keys,
)

Widths = Mapping[str, int]


def with_widths(model: ModelConfig, widths: Widths) -> ModelConfig:
    """The same description with other values for some fields of the model's config.

    Args:
        model: what is described.
        widths: by field: of the reference GPT, of the library's config, or a keyword argument of a
            user's own module.

    Raises:
        OpenwaferError: ``width-field`` for a field that the model does not have.
    """
    match _having(model, widths):
        case GptConfig() as described:
            changed: Any = dict(widths)
            return replace(described, **changed)
        case TransformersModel() as described:
            return replace(described, config=_library_config(described, widths))
        case UserModule() as described:
            return replace(described, kwargs={**described.kwargs, **widths})


def width_of(model: ModelConfig, field: str) -> int:
    """The value of such a field, the model's default included.

    Raises:
        OpenwaferError: ``width-field`` where there is no such field, or none with a number.
    """
    match _having(model, (field,)):
        case GptConfig() as described:
            found: object = getattr(described, field)
        case TransformersModel() as described:
            found = _library_value(described, field)
        case UserModule() as described:
            found = {**_arguments(described), **described.kwargs}[field]
    if not isinstance(found, int) or isinstance(found, bool):
        raise error(
            "width-field",
            f"the model's {field} is {found!r}, no width",
            help=f"give the model a {field} of its own, or leave it out of the widths",
        )
    return found


def _having(model: ModelConfig, names: Iterable[str]) -> GptConfig | TransformersModel | UserModule:
    """A description that has all these fields."""
    match model:
        case GptConfig():
            known = told = [each.name for each in fields(GptConfig) if each.name != "kind"]
        case TransformersModel():
            config_class = find_class(model.architecture, model.task).config_class
            known, told = [*accepted_keys(config_class)], own_keys(config_class)
        case UserModule():
            known = told = [*_arguments(model)]
        case CheckpointFolder():
            raise error(
                "width-field",
                "the widths of a saved model are those of its weights",
                help="describe the model by its architecture, to train it from scratch",
            )
    for name in names:
        if name not in known:
            raise error(
                "width-field",
                f"the model has no field {name!r} that could be a width",
                help=did_you_mean(name, told),
            )
    return model


def _library_config(model: TransformersModel, widths: Widths) -> dict[str, object]:
    config_class = find_class(model.architecture, model.task).config_class
    # GPT-2's n_embd goes by the name of hidden_size as well.
    aliases: Mapping[str, str] = config_class.attribute_map
    taken = {aliases.get(field, field) for field in widths}
    kept = {key: v for key, v in model.config.items() if aliases.get(key, key) not in taken}
    return {**kept, **widths}


def _library_value(model: TransformersModel, field: str) -> object:
    config_class = find_class(model.architecture, model.task).config_class
    try:
        return getattr(config_class(**model.config), field, None)
    except REFUSALS:
        # What is wrong with it, building the model says.
        return model.config.get(field)


def _arguments(model: UserModule) -> dict[str, object]:
    """Keyword arguments of a factory, with their defaults."""
    parameters = inspect.signature(import_factory(model.factory)).parameters
    return {name: each.default for name, each in parameters.items()}
