"""A Universal Transformer (arXiv 1807.03819) whose tokens halt by themselves (arXiv 1603.08983).

Shapes: B batch, T tokens, S tokens that go on, D hidden, H heads, K size of one head, V vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.training.models import GptConfig
from openwafer.training.models.reference_gpt import (
    GptOutput,
    Mlp,
    Projection,
    TokenEmbedding,
    residual_std,
    rotary_tables,
    rotate,
)

ENOUGH = 0.99
"""A token has halted when its chances of halting add up to this."""


class Pondering:
    """What becomes of each token, call by call.

    Attributes:
        x_BTD: tokens; those that have halted stay as they were.
        out_BTD: sums of a token over its calls, weighed by its chances of halting.
        goes_on_BT: which have not halted.
        halted_BT: sums of chances.
        calls_BT: calls of each token, and what was left of its chances at the last.
    """

    def __init__(self, x_BTD: Tensor) -> None:
        self.x_BTD, self.out_BTD = x_BTD, torch.zeros_like(x_BTD)
        self.halted_BT = self.calls_BT = x_BTD.new_zeros(x_BTD.shape[:2])
        self.goes_on_BT = self.halted_BT == 0

    def step(self, x_BTD: Tensor, chance_BT: Tensor, *, is_last: bool) -> None:
        """A call has made ``x_BTD`` of the tokens that go on."""
        goes_on_BT = self.goes_on_BT
        is_enough_BT = self.halted_BT + chance_BT >= ENOUGH
        stops_BT = goes_on_BT & (torch.ones_like(goes_on_BT) if is_last else is_enough_BT)
        left_BT = 1 - self.halted_BT
        weight_BT = torch.where(stops_BT, left_BT, chance_BT) * goes_on_BT
        self.x_BTD = torch.where(goes_on_BT[..., None], x_BTD, self.x_BTD)
        self.out_BTD = self.out_BTD + weight_BT[..., None] * x_BTD
        self.halted_BT = self.halted_BT + chance_BT * goes_on_BT
        self.calls_BT = self.calls_BT + goes_on_BT + stops_BT * left_BT
        self.goes_on_BT = goes_on_BT & ~stops_BT


class HaltingTransformer(nn.Module):
    """Repeats its layers until tokens have halted; what has halted stays as it is, and is seen.

    Args:
        most_calls: of layers, for a token.
        halts: what is left out: each token that has halted, sequences of which all have, or calls
            behind the last that a token of the batch needs. The output is the same.
        is_shared: whether one layer is called again and again; else each call has its own.

    Attributes:
        runs_whole: whether all tokens go through all calls, halted or not.
        ponder_cost: what a call for every token adds to the loss in training.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_heads: int,
        most_calls: int,
        *,
        halts: Literal["token", "sequence", "batch"] = "token",
        is_shared: bool = True,
    ) -> None:
        super().__init__()
        if most_calls < 1:
            raise InvalidFieldError("most_calls", f"{most_calls} is below 1: no token is computed")
        num_layers = 1 if is_shared else most_calls
        self.config = config = GptConfig(
            hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, num_kv_heads=1
        )
        self.most_calls, self.halts, self.ponder_cost = most_calls, halts, 0.01
        self.runs_whole = False
        self.embedding = TokenEmbedding(vocab_size, hidden_size, config.init_std)
        self.numbers = TokenEmbedding(most_calls, hidden_size, config.init_std)
        self.layers = nn.ModuleList(HaltingLayer(config) for _ in range(num_layers))
        self.halting = nn.Linear(hidden_size, 1)
        self.norm = nn.LayerNorm(hidden_size)
        self.head = Projection(hidden_size, vocab_size, config.init_std)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> GptOutput:
        """Predict each next token of ``input_ids`` (B, T); ``labels`` are shifted here."""
        pondering = Pondering(self.embedding(input_ids))
        tables = rotary_tables(input_ids.shape[1], self.config, input_ids.device)
        for layer, number_D, is_last in self._calls():
            x_BTD = pondering.x_BTD + number_D
            x_BTD = self._computed(partial(layer, tables=tables), x_BTD, pondering.goes_on_BT)
            chance_BT = self.halting(x_BTD).sigmoid()[..., 0]
            pondering.step(x_BTD, chance_BT, is_last=is_last)
            if not self.runs_whole and not pondering.goes_on_BT.any():
                break
        output = GptOutput.of(self.head(self.norm(pondering.out_BTD)), labels)
        if output.loss is None or not self.training:
            return output
        cost = self.ponder_cost * pondering.calls_BT.mean()
        return GptOutput(output.loss + cost, output.logits)

    def _calls(self) -> Iterator[tuple[nn.Module, Tensor, bool]]:
        numbers_ND = self.numbers(torch.arange(self.most_calls, device=self.halting.weight.device))
        for index, number_D in enumerate(numbers_ND):
            layer = self.layers[index % len(self.layers)]
            yield layer, number_D, index == self.most_calls - 1

    def _computed(
        self, layer: Callable[[Tensor, Tensor], Tensor], x_BTD: Tensor, goes_on_BT: Tensor
    ) -> Tensor:
        """The tokens with those that go on computed, and maybe others."""
        if self.runs_whole or self.halts == "batch":
            whole_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device).expand(x_BTD.shape[:2])
            return layer(x_BTD, whole_BT)
        (rows,) = torch.where(goes_on_BT.any(1))
        chosen_BT = goes_on_BT[rows] if self.halts == "token" else torch.ones_like(goes_on_BT[rows])
        num_chosen = int(chosen_BT.sum(1).max())
        index_BS = chosen_BT.int().argsort(dim=1, descending=True, stable=True)[:, :num_chosen]
        computed_BSD = layer(x_BTD[rows], index_BS)
        return x_BTD.index_put((rows[:, None], index_BS), computed_BSD)


class HaltingLayer(nn.Module):
    """Attention of some tokens to all before them, then the mlp; keys and values have one head."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        size, std = config.hidden_size, config.init_std
        self.head_size = config.head_size
        self.attention_norm = nn.LayerNorm(size)
        self.query = Projection(size, size, std)
        self.key = Projection(size, self.head_size, std)
        self.value = Projection(size, self.head_size, std)
        self.output = Projection(size, size, residual_std(config))
        self.mlp_norm = nn.LayerNorm(size)
        self.mlp = Mlp(config)

    def forward(self, x_BTD: Tensor, index_BS: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """The tokens at ``index_BS`` after this layer, (B, S, D)."""
        normed_BTD = self.attention_norm(x_BTD)
        place_BSD = index_BS[..., None].expand(*index_BS.shape, x_BTD.shape[2])
        query_BSHK = self.query(normed_BTD.gather(1, place_BSD)).unflatten(2, (-1, self.head_size))
        position_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        mixed_BHSK = F.scaled_dot_product_attention(
            rotate(
                query_BSHK.transpose(1, 2), *(table_TK[index_BS][:, None] for table_TK in tables)
            ),
            rotate(self.key(normed_BTD)[:, None], *tables),
            self.value(normed_BTD)[:, None],
            attn_mask=(position_T <= index_BS[..., None])[:, None],
            enable_gqa=True,
        )
        x_BSD = x_BTD.gather(1, place_BSD) + self.output(mixed_BHSK.transpose(1, 2).flatten(2))
        mapped_BSD: Tensor = self.mlp(self.mlp_norm(x_BSD))
        changed_BSD: Tensor = x_BSD + mapped_BSD
        return changed_BSD
