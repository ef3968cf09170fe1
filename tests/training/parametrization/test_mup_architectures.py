"""Every language model of the table of architectures is flat over widths under muP, or refused."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from _pytest.mark.structures import ParameterSet

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import TokenizerTraining
from openwafer.training.methods.coordinates import check_coordinates, steepest
from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig, OptimizerConfig
from tests.training.architectures import Architecture
from tests.training.models.decoders import DECODERS
from tests.training.models.encoder_decoders import ENCODER_DECODERS
from tests.training.models.encoders import ENCODERS
from tests.training.models.mixtures import MIXTURES
from tests.training.parametrization.wide_models import DATA

NUM_TOKENS = 257
# By these names the library's configs have widths and numbers of heads.
WIDTHS = (
    *("hidden_size", "n_embd", "d_model", "dim", "intermediate_size", "ffn_dim", "d_ff"),
    *(
        "ffn_hidden_size",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "hidden_dim",
        "embedding_size",
        "dff",
    ),
    "shared_intermediate_size",
    *("word_embed_proj_dim", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"),
    *("attention_heads", "encoder_attention_heads", "decoder_attention_heads"),
)
REFUSED = {
    "mup-forward": "fnet ibert",
    "mup-width": "falcon gpt-bigcode deepseek-v2 deepseek-v3 lfm2",
    "mup-parameter": "deberta-v2 xlnet funnel esm switch-transformers nllb-moe",
    "mup-initial-weights": """modernbert-decoder modernbert mamba mamba2 falcon-mamba jamba zamba2
        recurrent-gemma qwen3-next falcon-h1 rwkv xlstm""",
    # These are too small, or take other inputs, at the sizes or the tokens of this test.
    "model-config": "granite-moe-hybrid bamba",
    "model-inputs": "longformer prophetnet",
    "width-field": "gemma3n",
}
CODES = {name: code for code, names in REFUSED.items() for name in names.split()}
# Its head is two maps: what is between them begins smaller too.
HALF_OUTPUTS = ("rembert",)
ROWS = [
    row
    for row in (*DECODERS, *MIXTURES, *ENCODERS, *ENCODER_DECODERS)
    if not row.name.endswith("-dropout") and row.name not in HALF_OUTPUTS
]


def rows(*, has_rule: bool) -> list[ParameterSet]:
    chosen = [row for row in ROWS if (row.name not in CODES) == has_rule]
    return [pytest.param(row, id=row.name) for row in chosen]


def base_of(row: Architecture) -> Mapping[str, int]:
    return {name: size for name in WIDTHS if isinstance(size := row.config.get(name), int)}


def run_of(row: Architecture) -> RunConfig:
    model = TransformersModel(row.model_class, config={**row.config, "vocab_size": NUM_TOKENS})
    return RunConfig(
        steps=1,
        data=replace(DATA, tokenizer=TokenizerTraining(vocab_size=NUM_TOKENS)),
        model=model,
        parametrization=Parametrization.MUP,
        base=dict(base_of(row)),
        optimizer=OptimizerConfig(learning_rate=0.002),
        batch=BatchConfig(size=4, sequence_length=24),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name not in CODES], ids=lambda row: row.name
)
def test_an_architecture_is_flat_under_mup(row: Architecture) -> None:
    config = run_of(row)
    narrow = next(iter(config.base.values()))
    found = check_coordinates(config, [2 * narrow, 4 * narrow, 8 * narrow])
    bent = [(each.module, each.slopes) for each in found.mup if not each.is_flat]
    assert bent == []
    assert not steepest(found.standard).is_flat


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name in CODES], ids=lambda row: row.name
)
def test_an_architecture_without_a_rule_is_refused(row: Architecture) -> None:
    config = run_of(row)
    narrow = next(iter(config.base.values()), 32)
    with pytest.raises(OpenwaferError) as refused:
        check_coordinates(config, [2 * narrow, 4 * narrow])
    assert refused.value.diagnostics[0].code == CODES[row.name]
