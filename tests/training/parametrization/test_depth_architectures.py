"""Language models of the table of architectures are flat over depths under muP, or refused."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.coordinates import check_depths, steepest
from openwafer.training.methods.widths import with_widths
from openwafer.training.session import RunConfig
from tests.training.architectures import Architecture
from tests.training.models.decoders import DECODERS
from tests.training.models.encoder_decoders import ENCODER_DECODERS
from tests.training.models.encoders import ENCODERS
from tests.training.models.mixtures import MIXTURES
from tests.training.parametrization.test_mup_architectures import run_of

# By these names the library's configs have numbers of layers.
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "num_encoder_layers"),
)
REFUSED = {
    # Norms behind the sum; gains plus one, and gates, behind a branch; numbers of a layer's own;
    # shared layers; experts that no token comes to.
    "mup-depth": """openai-gpt bert roberta distilbert electra deberta-v2 mpnet fnet xlnet camembert
        xlm-roberta ernie funnel layoutlm rembert roformer squeezebert data2vec-text bart
        blenderbot-small marian mvp plbart gemma2 gemma3 doge diffllama gemma3n qwen2-moe pegasus-x
        switch-transformers nllb-moe""",
    "coordinate-config": "albert",
    "mup-initial-weights": """modernbert-decoder modernbert mamba mamba2 falcon-mamba jamba
        recurrent-gemma qwen3-next falcon-h1 rwkv xlstm bamba""",
    # Their configs name the kind of each layer, for one number of layers.
    "model-config": "gpt-neo zamba2 lfm2 lfm2-moe minimax granite-moe-hybrid",
    "mup-forward": "ibert",
    "model-inputs": "longformer prophetnet",
}
CODES = {name: code for code, names in REFUSED.items() for name in names.split()}
# What branches add at first is as large as what they are added to, as in models of real widths.
OVERRIDES: Mapping[str, Mapping[str, object]] = {
    "opt": {"word_embed_proj_dim": 32},
    "t5": {"initializer_factor": 0.1},
}
# Nemotron, Arcee and BitNet are not: with squares in MLPs, changes shrink with the depth.
FLAT = frozenset(
    """mixtral gpt-neox gpt-j bloom qwen2 qwen3 phi gemma olmo2 qwen3-moe gpt-oss deepseek-v3
    pegasus mbart roberta-prelayernorm opt glm4 starcoder2 xglm llama mistral gpt2 falcon phi3
    olmo granite cohere stablelm smollm3 glm mpt ministral apertus biogpt codegen cohere2
    t5 ctrl ernie4_5 gpt-bigcode helium hunyuan-dense nanochat""".split()  # noqa: SIM905 - reads as the list it is
)
ROWS = (*DECODERS, *MIXTURES, *ENCODERS, *ENCODER_DECODERS)


def deep_run_of(row: Architecture) -> RunConfig:
    """Of twice the layers of its row."""
    row = replace(row, config={**row.config, **OVERRIDES.get(row.name, {})})
    config = run_of(row)
    if "initializer_factor" in row.config:
        # So small, its gradients are as small as the eps of the library.
        config = replace(config, optimizer=replace(config.optimizer, options={"eps": 1e-14}))
    base = {name: size for name in LAYERS if isinstance(size := row.config.get(name), int)}
    model = with_widths(config.model, {name: 2 * size for name, size in base.items()})
    return replace(config, model=model, base=base)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in FLAT], ids=lambda row: row.name)
def test_an_architecture_is_flat_over_depths(row: Architecture) -> None:
    config = deep_run_of(row)
    shallow = 2 * next(iter(config.base.values()))
    found = check_depths(config, [shallow, 4 * shallow])
    assert [(each.module, each.slopes) for each in found.mup if not each.is_flat] == []
    assert not steepest(found.standard).is_flat


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name in CODES], ids=lambda row: row.name
)
def test_an_architecture_without_a_rule_for_depth_is_refused(row: Architecture) -> None:
    config = deep_run_of(row)
    shallow = next(iter(config.base.values()))
    with pytest.raises(OpenwaferError) as refused:
        check_depths(config, [shallow, 2 * shallow])
    assert refused.value.diagnostics[0].code == CODES[row.name]
