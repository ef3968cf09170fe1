"""Mixture of depths (arXiv 2404.02258): every other layer takes a share of the tokens.

Shapes: B batch, T tokens, S tokens that a layer takes, D hidden, K size of one head, V vocabulary.
"""

from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.training.models import GptConfig
from openwafer.training.models.reference_gpt import (
    GptLayer,
    GptOutput,
    Projection,
    TokenEmbedding,
    rotary_tables,
)


class MixtureOfDepths(nn.Module):
    """A decoder; layers with a router take the tokens that it likes best, the others pass by.

    Which tokens a layer takes is chosen among a whole sequence, so that a token is told a little of
    those behind it, and a text, whose tokens behind are not there yet, is written with less.

    Args:
        capacity: share of the tokens that a layer with a router takes.
        every: layer has a router; 1 gives all of them one.

    Attributes:
        runs_whole: whether layers take all tokens.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_heads: int,
        num_layers: int,
        *,
        capacity: float = 0.5,
        every: int = 2,
    ) -> None:
        super().__init__()
        if not 0 < capacity <= 1:
            raise InvalidFieldError("capacity", f"{capacity} is not a share of the tokens")
        if every < 1:
            raise InvalidFieldError("every", f"{every} is below 1; 1 gives all layers a router")
        self.config = config = GptConfig(
            hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads
        )
        self.capacity = capacity
        self.runs_whole = False
        self.embedding = TokenEmbedding(vocab_size, hidden_size, config.init_std)
        self.layers = nn.ModuleList(GptLayer(config) for _ in range(num_layers))
        self.routers = nn.ModuleDict(
            {
                str(index): Projection(hidden_size, 1, config.init_std)
                for index in range(every - 1, num_layers, every)
            }
        )
        self.norm = nn.RMSNorm(hidden_size)
        self.head = Projection(hidden_size, vocab_size, config.init_std)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> GptOutput:
        """Predict each next token of ``input_ids`` (B, T); ``labels`` are shifted here."""
        x_BTD = self.embedding(input_ids)
        tables = rotary_tables(input_ids.shape[1], self.config, input_ids.device)
        for index, layer in enumerate(self.layers):
            if str(index) in self.routers:
                x_BTD = self._routed(layer, self.routers[str(index)], x_BTD, tables)
            else:
                x_BTD = layer(x_BTD, *tables)
        return GptOutput.of(self.head(self.norm(x_BTD)), labels)

    def _routed(
        self, layer: nn.Module, router: nn.Module, x_BTD: Tensor, tables: tuple[Tensor, Tensor]
    ) -> Tensor:
        """The tokens, those that a layer takes changed by as much as its router likes them."""
        num_tokens = x_BTD.shape[1]
        share = 1.0 if self.runs_whole else self.capacity
        liked_BT = router(x_BTD)[..., 0]
        index_BS = liked_BT.topk(max(1, round(share * num_tokens)), sorted=False).indices
        # In their order, so that a token sees those before it.
        index_BS = index_BS.sort().values
        place_BSD = index_BS[..., None].expand(*index_BS.shape, x_BTD.shape[2])
        x_BSD = x_BTD.gather(1, place_BSD)
        cos_BSK, sin_BSK = (table_TK[index_BS][:, None] for table_TK in tables)
        liked_BS = liked_BT.gather(1, index_BS)
        added_BSD = liked_BS.sigmoid()[..., None] * (layer(x_BSD, cos_BSK, sin_BSK) - x_BSD)
        return x_BTD.scatter_add(1, place_BSD, added_BSD)
