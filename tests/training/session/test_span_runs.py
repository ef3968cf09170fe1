"""Runs of models of two texts: what spans held is learned, with the bits of the plain loop."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.data import TokenizerTraining
from openwafer.training.data.span_corruption import SpanCorruption
from openwafer.training.models import TransformersModel
from openwafer.training.models.transformers_model import Task
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import EvaluateConfig
from tests.tables import case
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    saved_parameters,
    tiny_config,
    train_quietly,
)

T5 = TransformersModel(
    "t5",
    Task.SEQ2SEQ_LM,
    {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 1,
        "num_heads": 2,
        "dropout_rate": 0.1,
        "decoder_start_token_id": 0,
    },
)
NAMES = tuple(f"<extra_id_{number}>" for number in range(2))


def corrupted(data: TinyData, folder: Path) -> RunConfig:
    tokenizer = TokenizerTraining(280, special_tokens=NAMES)
    spans = SpanCorruption(0.3, 2.0)
    tokens = replace(data.config(), tokenizer=tokenizer, span_corruption=spans)
    return replace(tiny_config(data, folder), model=T5, data=tokens)


@pytest.mark.parametrize("cross_documents", [True, case(False, by_default=False)])
def test_a_streamed_run_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, cross_documents: bool
) -> None:
    config = corrupted(data, tmp_path)
    tokens = replace(config.data, cross_documents=cross_documents)
    config = replace(config, data=tokens, evaluate=EvaluateConfig(every=2, batches=1))
    result = train_quietly(config)
    found, expected = saved_parameters(result), plain_loop(config)
    # The embedding has several names in the model, and one in the store.
    assert differing(found, {name: expected[name] for name in found}) == []
