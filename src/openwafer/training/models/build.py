"""Builds a model from its description, whatever its source."""

from dataclasses import replace

import torch
from torch import nn

from openwafer.diagnostics import error
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
from openwafer.training.models.user_module import UserModule, build_user_module

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
