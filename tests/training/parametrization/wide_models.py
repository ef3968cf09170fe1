"""Models four times as wide as their base, six times in their MLPs, and the paper's table for them.

The table is written by hand from Yang et al. 2022, arXiv:2203.03466, Table 8 (for routers, which
have no module whose input could be multiplied, Table 3), by tensor name and never by shape.
"""

from dataclasses import dataclass
from pathlib import Path

from openwafer.training.data import DataSource, SourceKind
from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import OptimizerConfig, TokensConfig

VOCABULARY = 120
STD = 0.02
DATA = TokensConfig(DataSource(SourceKind.TEXT, ("nowhere",)))


@dataclass(frozen=True)
class Expected:
    """Factors of one tensor: of its initial standard deviation, Adam's and SGD's rate, Muon's.

    Attributes:
        std: what the base model draws it with, times the factor; ``None`` where nothing is drawn.
        muon: ``None`` where Muon leaves it to AdamW.
    """

    std: float | None
    adam: float
    sgd: float
    muon: float | None = None


VECTOR = Expected(None, 1, 4)
WIDE_VECTOR = Expected(None, 1, 6)
FIXED = Expected(None, 1, 1)
TABLE = Expected(STD, 1, 4)
HEAD = Expected(STD, 1, 4)
SQUARE = Expected(STD / 2, 1 / 4, 1, 1)
# Torch multiplies Muon's updates by sqrt(rows / columns), at least 1: a tall matrix has its due.
UP = Expected(STD / 2, 1 / 4, 6 / 4, 1)
DOWN = Expected(STD / 6**0.5, 1 / 6, 4 / 6, (4 / 6) ** 0.5)
RESIDUAL = 2**-0.5


@dataclass(frozen=True)
class WideModel:
    """A model, its base widths, the table by the endings of names, and multipliers by module."""

    model: TransformersModel
    base: dict[str, int]
    table: dict[str, Expected]
    multipliers: dict[str, float]

    def config(self, optimizer: OptimizerConfig) -> RunConfig:
        return RunConfig(
            steps=3,
            data=DATA,
            folder=Path("nowhere"),
            model=self.model,
            parametrization=Parametrization.MUP,
            base=self.base,
            optimizer=optimizer,
            clip_norm=None,
        )

    def expected(self, name: str) -> Expected:
        """The row of a tensor; exactly one must fit."""
        [row] = [row for ending, row in self.table.items() if name.endswith(ending)]
        return row


WIDTHS = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 8}
BASE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
SHALLOW = {"num_hidden_layers": 1, "initializer_range": STD}
ATTENTION = {f"self_attn.{name}_proj.weight": SQUARE for name in "qkvo"}
NORMS = dict.fromkeys(("layernorm.weight", ".norm.weight"), VECTOR)

GPT2 = WideModel(
    TransformersModel("gpt2", config={"n_embd": 128, "n_inner": 384, "n_head": 8, "n_layer": 1}),
    {"n_embd": 32, "n_inner": 64, "n_head": 2},
    {
        "wte.weight": TABLE,
        "wpe.weight": TABLE,
        # Stored the other way round, so that Muon's rows are inputs.
        "c_attn.weight": Expected(STD / 2, 1 / 4, 1, 1),
        "attn.c_proj.weight": Expected(STD * RESIDUAL / 2, 1 / 4, 1, 1),
        "c_fc.weight": Expected(STD / 2, 1 / 4, 6 / 4, (6 / 4) ** 0.5),
        "mlp.c_proj.weight": Expected(
            STD * RESIDUAL / 6**0.5, 1 / 6, 4 / 6, (4 / 6) ** 0.5 * (2 / 3) ** 0.5
        ),
        "c_attn.bias": VECTOR,
        "c_proj.bias": VECTOR,
        "c_fc.bias": WIDE_VECTOR,
        **{
            f"{name}.{kind}": VECTOR
            for name in ("ln_1", "ln_2", "ln_f")
            for kind in ("weight", "bias")
        },
    },
    {"lm_head": 1 / 4},
)
LLAMA = WideModel(
    TransformersModel("llama", config={**WIDTHS, **SHALLOW}),
    BASE,
    {
        **ATTENTION,
        **NORMS,
        "embed_tokens.weight": TABLE,
        "gate_proj.weight": UP,
        "up_proj.weight": UP,
        "down_proj.weight": DOWN,
        "lm_head.weight": HEAD,
    },
    {"lm_head": 1 / 4},
)
MIXTRAL = WideModel(
    TransformersModel(
        "mixtral", config={**WIDTHS, **SHALLOW, "num_key_value_heads": 4, "num_local_experts": 3}
    ),
    {**BASE, "num_key_value_heads": 1},
    {
        **ATTENTION,
        **NORMS,
        "embed_tokens.weight": TABLE,
        "gate.weight": Expected(STD / 4, 1 / 4, 1 / 4, 1 / 2),
        "gate_up_proj": Expected(STD / 2, 1 / 4, 6 / 4),
        "down_proj": Expected(STD / 6**0.5, 1 / 6, 4 / 6),
        "lm_head.weight": HEAD,
    },
    {"lm_head": 1 / 4},
)
BERT_MATRICES = ("self.query", "self.key", "self.value", "attention.output.dense")
BERT = WideModel(
    TransformersModel("BertForMaskedLM", config={**WIDTHS, **SHALLOW}),
    BASE,
    {
        "embeddings.weight": TABLE,
        "LayerNorm.weight": VECTOR,
        "LayerNorm.bias": VECTOR,
        **{f"{name}.weight": SQUARE for name in (*BERT_MATRICES, "transform.dense")},
        **{f"{name}.bias": VECTOR for name in (*BERT_MATRICES, "transform.dense")},
        "intermediate.dense.weight": UP,
        "intermediate.dense.bias": WIDE_VECTOR,
        "0.output.dense.weight": DOWN,
        "0.output.dense.bias": VECTOR,
        "predictions.bias": FIXED,
    },
    {"cls.predictions.decoder": 1 / 4},
)
# T5 draws with d_model ** -0.5 and the like, here those of its base.
T5_ROOT = 32**-0.5
T5 = WideModel(
    TransformersModel(
        "T5ForConditionalGeneration",
        config={
            "d_model": 128,
            "d_ff": 384,
            "d_kv": 8,
            "num_heads": 16,
            "num_layers": 1,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
    {"d_model": 32, "d_ff": 64, "num_heads": 4},
    {
        "shared.weight": Expected(1.0, 1, 4),
        "Attention.q.weight": Expected((32 * 8) ** -0.5 / 2, 1 / 4, 1, 1),
        **{f"Attention.{n}.weight": Expected(T5_ROOT / 2, 1 / 4, 1, 1) for n in "kvo"},
        "relative_attention_bias.weight": Expected(T5_ROOT, 1, 4),
        "wi.weight": Expected(T5_ROOT / 2, 1 / 4, 6 / 4, 1),
        "wo.weight": Expected(64**-0.5 / 6**0.5, 1 / 6, 4 / 6, (4 / 6) ** 0.5),
        "norm.weight": VECTOR,
    },
    # The library multiplies by 1 / sqrt(d_model) itself, half of what the table has.
    {"lm_head": 1 / 2},
)
# Gemma multiplies embeddings by sqrt(hidden_size), here twice what its base does.
GEMMA = WideModel(
    TransformersModel(
        "gemma", config={**WIDTHS, **SHALLOW, "num_key_value_heads": 4, "head_dim": 16}
    ),
    {**BASE, "num_key_value_heads": 1},
    {
        **ATTENTION,
        **NORMS,
        "embed_tokens.weight": Expected(STD / 2, 1 / 2, 1),
        "gate_proj.weight": UP,
        "up_proj.weight": UP,
        "down_proj.weight": DOWN,
    },
    {"lm_head": 1 / 2},
)
WIDE_MODELS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mixtral": MIXTRAL,
    "bert": BERT,
    "t5": T5,
    "gemma": GEMMA,
}
