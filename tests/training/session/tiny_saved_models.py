"""Small models as others save them, with a tokenizer."""

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from openwafer.training.data.tokenizer import load_tokenizer
from tests.training.session.tiny_runs import TinyData

POSITIONS = 24
SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": POSITIONS,
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS},
}


def save_model(kind: str, data: TinyData, folder: Path, dtype: torch.dtype) -> Path:
    """A small model with a tokenizer, as others save them."""
    torch.manual_seed(3)
    vocab_size = load_tokenizer(data.tokenizer).vocab_size
    config = transformers.CONFIG_MAPPING[kind](vocab_size=vocab_size, **SIZES[kind])
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.to(dtype).save_pretrained(folder)
    shutil.copytree(data.tokenizer, folder, dirs_exist_ok=True)
    return folder
