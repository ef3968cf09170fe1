"""Names an exported model's tensors, and writes the config files beside them.

Everything here is computed from the model's structure; no weight is read, so parameters may be on
the meta device.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from openwafer.training.models.checkpoint_folder import CONFIG_FILE, GENERATION_FILE
from openwafer.training.models.reference_gpt import GptConfig, ReferenceGpt
from openwafer.training.models.transformers_model import is_of_library

SAFETENSORS_METADATA = {"format": "pt"}

LLAMA_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
}
LLAMA_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


@dataclass(frozen=True)
class HuggingFaceFiles:
    """An export in the Hugging Face layout, without the tensors.

    Attributes:
        names: the name in the file of every tensor of the model's state that belongs there; a tied
            tensor has one entry, under the name that ``named_parameters`` gives it.
        json_files: content of the files beside, by file name; empty for a module that the
            transformers library does not know.
    """

    names: Mapping[str, str]
    json_files: Mapping[str, Mapping[str, Any]]


def hugging_face_files(model: nn.Module, dtype: torch.dtype = torch.float32) -> HuggingFaceFiles:
    """Describe the export of ``model`` with floating-point tensors of ``dtype``.

    Tensors keep the names of the module's own state, which ``from_pretrained`` reads; those of the
    reference GPT become Llama's.
    """
    names = state_names(model)
    if isinstance(model, ReferenceGpt):
        return to_hugging_face(model.config, names, dtype)
    files = {}
    if is_of_library(model):
        files[CONFIG_FILE] = _config_json(model.config, type(model).__name__, dtype)
        if model.can_generate():
            generation = model.generation_config.to_json_string(use_diff=True)
            files[GENERATION_FILE] = json.loads(generation)
    return HuggingFaceFiles({name: name for name in names}, files)


def to_hugging_face(
    config: GptConfig, names: Iterable[str], dtype: torch.dtype = torch.float32
) -> HuggingFaceFiles:
    """Describe the reference GPT's tensors ``names`` as a ``LlamaForCausalLM``."""
    llama = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.mlp_units,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.context_length,
        initializer_range=config.init_std,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.has_tied_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    return HuggingFaceFiles(
        {name: _llama_name(name) for name in names},
        {CONFIG_FILE: _config_json(llama, "LlamaForCausalLM", dtype)},
    )


def state_names(model: nn.Module) -> list[str]:
    """Names of the model's state, each tensor once, under its first name."""
    first_names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first_names.setdefault(id(tensor), name)
    return list(first_names.values())


def _llama_name(name: str) -> str:
    match name.split("."):
        case ["layers", index, *part, kind]:
            return f"model.layers.{index}.{LLAMA_LAYER_NAMES['.'.join(part)]}.{kind}"
        case [part, kind]:
            return f"{LLAMA_NAMES[part]}.{kind}"
        case _:
            raise KeyError(name)


def _config_json(config: Any, architecture: str, dtype: torch.dtype) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    content |= {"architectures": [architecture], "dtype": str(dtype).removeprefix("torch.")}
    return _without_cache(content)


def _without_cache(content: dict[str, Any]) -> dict[str, Any]:
    """Leave out that training keeps no cache, so that generation finds it on."""
    return {
        key: _without_cache(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if key != "use_cache"
    }
