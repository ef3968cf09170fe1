"""Forwards that keep keys and values, so that each token of a text passes the model once."""

import inspect
from typing import Final

import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicSlidingWindowLayer

from openwafer.training.models.reference_gpt import ReferenceGpt
from openwafer.training.models.transformers_model import is_of_library

# In releases of the library from 5.24 on, and before.
CACHE_ARGUMENTS: Final = ("cache", "past_key_values")


def new_key_values(model: nn.Module) -> "transformers.Cache | None":
    """An empty cache for one text; ``None`` for a model that keeps no keys and values.

    A model of the transformers library that also keeps other state, as recurrent layers do, counts
    among those that keep none.
    """
    if isinstance(model, ReferenceGpt):
        return transformers.Cache([transformers.DynamicLayer() for _ in model.layers])
    if not is_of_library(model) or model._is_stateful:  # noqa: SLF001
        return None
    if _cache_argument(model) is None:
        return None
    past = transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    # Layers of other kinds have a state that is no token's.
    known = (transformers.DynamicLayer, DynamicSlidingWindowLayer)
    return past if all(type(layer) in known for layer in past.layers) else None


def kept_bytes(past: "transformers.Cache") -> int:
    """Bytes of the keys and values of the tokens so far."""
    kept = [layer for layer in past.layers if layer.is_initialized]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in kept)


def shorten(past: "transformers.Cache", num_tokens: int) -> bool:
    """Leave keys and values of the first tokens alone; whether that can be done.

    A layer whose window has passed these tokens no longer has what they see.
    """
    for layer in past.layers:
        if layer.is_sliding and layer.get_seq_length() >= layer.sliding_window:
            return False
    past.crop(num_tokens - past.get_seq_length())
    return True


def forward_from(model: nn.Module, input_ids: torch.Tensor, past: "transformers.Cache") -> object:
    """The model's output for ``input_ids`` (1, T), which follow the tokens that ``past`` holds."""
    name = _cache_argument(model)
    assert name is not None
    asked = {"use_cache": True} if is_of_library(model) else {}
    return model(input_ids=input_ids, **asked, **{name: past})


def _cache_argument(model: nn.Module) -> str | None:
    """What a forward calls keys and values; ``None`` where it keeps none."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in known), None)
