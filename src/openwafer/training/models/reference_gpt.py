"""The reference GPT: a decoder-only transformer small enough to read in one sitting.

RMSNorm before each part, rotary positions, grouped-query attention, SwiGLU: as a function it is
the Llama of the transformers library, weight for weight (see ``export``).

Shapes: B batch, T tokens, D hidden, H heads, G heads of keys and values, K size of one head,
F hidden units of the mlp, V vocabulary. ``x_BTD`` is a tensor of shape (B, T, D).
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import error
from openwafer.training.labels import IGNORED_LABEL

MLP_MULTIPLE = 64
CacheLayer: TypeAlias = Any
"""Keys (B, G, T, K) and values that a `transformers.Cache` keeps of one layer."""


@dataclass(frozen=True)
class GptConfig:
    """Sizes of a reference GPT.

    Attributes:
        vocab_size: number of token ids; ``None`` until the tokenizer is known.
        context_length: longest sequence, in tokens.
        num_kv_heads: heads of keys and values, each shared by ``num_heads / num_kv_heads`` query
            heads; ``None`` for as many as ``num_heads``.
        mlp_size: hidden units of the mlp; ``None`` for 8/3 ``hidden_size``, rounded up to a
            multiple of 64.
        has_tied_embeddings: the head uses the weight of the embedding.
        dropout: share of activations set to zero in training: embeddings, attention weights, and
            what each part adds to the residual.
        init_std: standard deviation of the initial weights; the two projections that add to the
            residual start smaller, by 1 / sqrt(2 num_layers) (Radford et al. 2019, section 2.3).
    """

    kind: Literal["reference-gpt"] = field(default="reference-gpt", kw_only=True)
    vocab_size: int | None = None
    context_length: int = 1024
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    mlp_size: int | None = None
    has_tied_embeddings: bool = True
    dropout: float = 0.0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for name in ("context_length", "hidden_size", "num_layers", "num_heads"):
            _require_positive(name, getattr(self, name))
        for name in ("vocab_size", "num_kv_heads", "mlp_size"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        for name in ("rope_theta", "norm_eps", "init_std"):
            _require_positive(name, getattr(self, name))
        if not 0 <= self.dropout < 1:
            raise InvalidFieldError("dropout", f"{self.dropout} is not in [0, 1)")
        self._require_whole_heads()

    def _require_whole_heads(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            message = (
                f"{self.num_heads} heads do not divide hidden_size {self.hidden_size} into heads "
                "of an even size, which rotary positions need"
            )
            raise InvalidFieldError("num_heads", message)
        if self.num_heads % self.kv_heads:
            message = f"{self.kv_heads} does not divide num_heads {self.num_heads}"
            raise InvalidFieldError("num_kv_heads", message)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.hidden_size // self.num_heads

    @property
    def mlp_units(self) -> int:
        """Hidden units of the mlp."""
        if self.mlp_size is not None:
            return self.mlp_size
        return -(-self.hidden_size * 8 // (3 * MLP_MULTIPLE)) * MLP_MULTIPLE


def _require_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InvalidFieldError(name, f"{value} is not a positive number")


@dataclass(frozen=True)
class GptOutput:
    """What forward returns: ``logits`` (B, T, V), and ``loss``, a scalar when labels were given."""

    loss: Tensor | None
    logits: Tensor

    @classmethod
    def of(cls, logits_BTV: Tensor, labels_BT: Tensor | None) -> "GptOutput":
        """The output with the loss of :func:`next_token_loss` where labels were given."""
        loss = None if labels_BT is None else next_token_loss(logits_BTV, labels_BT)
        return cls(loss, logits_BTV)


class ReferenceGpt(nn.Module):
    """The model; ``config`` keeps its sizes."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise error(
                "model-vocab-size",
                "the reference GPT needs a vocabulary size",
                help="set model.vocab_size, or give a tokenizer to take it from",
            )
        self.config = config
        size, std = config.hidden_size, config.init_std
        self.embedding = TokenEmbedding(config.vocab_size, size, std)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(GptLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(size, config.norm_eps)
        self.head = Projection(size, config.vocab_size, std)
        if config.has_tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        past_key_values: "transformers.Cache | None" = None,
    ) -> GptOutput:
        """Predict each next token of ``input_ids`` (B, T).

        ``labels`` (B, T) are token ids aligned with the inputs, mostly the inputs themselves: they
        are shifted here, and -100 is left out of the mean. With ``past_key_values`` the inputs
        follow the tokens that it was given before, and it keeps theirs too.

        Raises:
            OpenwaferError: the sequence is longer than the context.
        """
        num_past = 0 if past_key_values is None else past_key_values.get_seq_length()
        num_tokens = num_past + input_ids.shape[1]
        if num_tokens > self.config.context_length:
            raise error(
                "model-context-length",
                f"a sequence of {num_tokens} tokens in a context of {self.config.context_length}",
                help="cut the sequence, or raise model.context_length",
            )
        cos_TK, sin_TK = rotary_tables(num_tokens, self.config, input_ids.device)
        cos_TK, sin_TK = cos_TK[num_past:], sin_TK[num_past:]
        x_BTD = self.dropout(self.embedding(input_ids))
        pasts = [None] * len(self.layers) if past_key_values is None else past_key_values.layers
        for layer, past in zip(self.layers, pasts, strict=True):
            x_BTD = layer(x_BTD, cos_TK, sin_TK, past)
        logits_BTV = self.head(self.norm(x_BTD))
        return GptOutput.of(logits_BTV, labels)


class GptLayer(nn.Module):
    """Attention, then the mlp, each on a normalised input and added to the residual."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor, past: CacheLayer | None = None
    ) -> Tensor:
        """Return the residual after this layer."""
        attended_BTD = self.attention(self.attention_norm(x_BTD), cos_TK, sin_TK, past)
        x_BTD = x_BTD + self.dropout(attended_BTD)
        mapped_BTD: Tensor = self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        return x_BTD + mapped_BTD


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        size, head_size, std = config.hidden_size, config.head_size, config.init_std
        self.head_size = head_size
        self.scaling = 1 / math.sqrt(head_size)
        self.dropout = config.dropout
        self.query = Projection(size, config.num_heads * head_size, std)
        self.key = Projection(size, config.kv_heads * head_size, std)
        self.value = Projection(size, config.kv_heads * head_size, std)
        self.output = Projection(config.num_heads * head_size, size, residual_std(config))

    def forward(
        self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor, past: CacheLayer | None = None
    ) -> Tensor:
        """Return what each token gathers from itself and those before it, (B, T, D)."""
        query_BHTK = rotate(self._heads(self.query(x_BTD)), cos_TK, sin_TK)
        key_BGTK = rotate(self._heads(self.key(x_BTD)), cos_TK, sin_TK)
        value_BGTK = self._heads(self.value(x_BTD))
        if past is not None:
            key_BGTK, value_BGTK = past.update(key_BGTK, value_BGTK)
        num_past = key_BGTK.shape[2] - query_BHTK.shape[2]
        mixed_BHTK = F.scaled_dot_product_attention(
            query_BHTK,
            key_BGTK,
            value_BGTK,
            attn_mask=causal_mask(query_BHTK, key_BGTK) if num_past else None,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=not num_past,
            scale=self.scaling,
            enable_gqa=query_BHTK.shape[1] != key_BGTK.shape[1],
        )
        output_BTD: Tensor = self.output(mixed_BHTK.transpose(1, 2).flatten(2))
        return output_BTD

    def _heads(self, x_BTD: Tensor) -> Tensor:
        x_BTHK: Tensor = x_BTD.unflatten(2, (-1, self.head_size))
        return x_BTHK.transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        size, units, std = config.hidden_size, config.mlp_units, config.init_std
        self.gate = Projection(size, units, std)
        self.up = Projection(size, units, std)
        self.down = Projection(units, size, residual_std(config))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map every token by itself, (B, T, D)."""
        hidden_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        output_BTD: Tensor = self.down(hidden_BTF)
        return output_BTD


class Projection(nn.Linear):
    """A linear map without bias, drawn from a normal distribution: once, with no second pass."""

    def __init__(self, num_inputs: int, num_outputs: int, std: float) -> None:
        self.std = std
        super().__init__(num_inputs, num_outputs, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weight."""
        nn.init.normal_(self.weight, std=self.std)


class TokenEmbedding(nn.Embedding):
    """A vector a token id, drawn from a normal distribution."""

    def __init__(self, vocab_size: int, size: int, std: float) -> None:
        self.std = std
        super().__init__(vocab_size, size)

    def reset_parameters(self) -> None:
        """Draw the weight."""
        nn.init.normal_(self.weight, std=self.std)


def residual_std(config: GptConfig) -> float:
    """Standard deviation of projections that add to the residual, twice in every layer."""
    return config.init_std / math.sqrt(2 * config.num_layers)


def rotary_tables(
    num_tokens: int, config: GptConfig, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (T, K), in float32.

    The angles of the two halves of a head are the same (Su et al. 2021, arXiv:2104.09864).
    """
    exponent_K = torch.arange(0, config.head_size, 2, device=device).float() / config.head_size
    position_T = torch.arange(num_tokens, device=device).float()
    angle_TK = torch.outer(position_T, 1.0 / config.rope_theta**exponent_K).repeat(1, 2)
    return angle_TK.cos(), angle_TK.sin()


def rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn every pair (i, i + K/2) of a head by its position's angle."""
    first, second = x_BHTK.chunk(2, dim=-1)
    turned_BHTK = torch.cat((-second, first), dim=-1)
    return (x_BHTK * cos_TK + turned_BHTK * sin_TK).type_as(x_BHTK)


def causal_mask(query_BHTK: Tensor, key_BGTK: Tensor) -> Tensor:
    """Which keys each query may see, where the queries are those of the last tokens."""
    num_queries, num_keys = query_BHTK.shape[2], key_BGTK.shape[2]
    sees = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query_BHTK.device)
    return sees.tril(num_keys - num_queries)


def next_token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross entropy, in float32, of each logit against the label one token later."""
    next_BT = F.pad(labels_BT[:, 1:], (0, 1), value=IGNORED_LABEL)
    return F.cross_entropy(
        logits_BTV.float().flatten(0, 1), next_BT.flatten(), ignore_index=IGNORED_LABEL
    )
