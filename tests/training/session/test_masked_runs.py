"""Runs of masked language models: hidden tokens are learned, with the bits of the plain loop."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import TokenizerTraining
from openwafer.training.data.masking import Masking
from openwafer.training.models import TransformersModel
from openwafer.training.models.transformers_model import Task
from openwafer.training.session import RunConfig, Session
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
    train_quietly,
)

BERT = TransformersModel(
    "bert",
    Task.MASKED_LM,
    {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 12,
    },
)


def masked(data: TinyData, folder: Path) -> RunConfig:
    tokenizer = TokenizerTraining(280, special_tokens=("<|mask|>",))
    tokens = replace(data.config(), tokenizer=tokenizer, masking=Masking(0.3, "<|mask|>"))
    return replace(tiny_config(data, folder), model=BERT, data=tokens)


def test_a_streamed_run_equals_the_plain_loop_and_writes_no_text(
    data: TinyData, tmp_path: Path
) -> None:
    config = masked(data, tmp_path)
    result = train_quietly(config)
    found, expected = saved_parameters(result), plain_loop(config)
    # A tied weight has two names in the model, and one in the store.
    assert differing(found, {name: expected[name] for name in found}) == []
    with pytest.raises(OpenwaferError, match="BertForMaskedLM finds hidden tokens, and writes no"):
        Session(config, console=quiet()).generate("1 squared is")
