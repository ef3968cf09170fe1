"""The variants' GPT in plain torch, with the Model Zoo's names, and its run in present style."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from openwafer.training.frontends.present import cstorch
from tests.training.frontends.official.variants import LENGTH, STEPS, VOCABULARY, Config


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        for kind in ("q", "k", "v", "output"):
            self.add_module(f"proj_{kind}_dense_layer", nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.get_submodule(f"proj_{kind}_dense_layer")(x)
            .unflatten(-1, (self.num_heads, -1))
            .transpose(1, 2)
            for kind in "qkv"
        )
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        output = self.get_submodule("proj_output_dense_layer")
        projected: Tensor = output(found.transpose(1, 2).flatten(-2))
        return projected


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        sizes = ((width, inner), (inner, width))
        self.ffn = nn.ModuleList(nn.ModuleDict({"linear_layer": nn.Linear(*s)}) for s in sizes)

    def forward(self, x: Tensor) -> Tensor:
        into, back = (self.get_submodule(f"ffn.{at}.linear_layer") for at in (0, 1))
        found: Tensor = back(functional.gelu(into(x)))
        return found


class Layer(nn.Module):
    def __init__(self, width: int, num_heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = Attention(width, num_heads)
        self.ffn = FeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x))
        found: Tensor = x + self.ffn(self.norm3(x))
        return found


class PlainGpt(nn.Module):
    """Takes token ids of (batch, LENGTH), gives the mean loss of their labels."""

    def __init__(self, of: Config) -> None:
        super().__init__()
        width, self.num_layers = of["hidden_size"], of["num_hidden_layers"]
        positions = nn.ModuleDict({"embed": nn.Embedding(LENGTH, width)})
        self.embedding_layer = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(VOCABULARY, width),
                "position_embeddings": positions,
            }
        )
        layers = nn.ModuleList(
            Layer(width, of["num_heads"], of["filter_size"]) for _ in range(self.num_layers)
        )
        self.ln_f = nn.LayerNorm(width)
        self.transformer_decoder = nn.ModuleDict({"layers": layers, "norm": self.ln_f})
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.get_parameter("embedding_layer.word_embeddings.weight")

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.get_submodule("embedding_layer.word_embeddings")(ids)
        x = x + self.get_parameter("embedding_layer.position_embeddings.embed.weight")
        for number in range(self.num_layers):
            x = self.get_submodule(f"transformer_decoder.layers.{number}")(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def groups_of(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Biases and weights of norms do not decay."""
    kinds: dict[float, list[nn.Parameter]] = {decay: [], 0.0: []}
    for one in model.parameters():
        kinds[0.0 if one.ndim == 1 else decay].append(one)
    return [{"params": params, "weight_decay": of} for of, params in kinds.items()]


def present_losses(config: Config, state: dict[str, Tensor], data: Tensor) -> list[float]:
    """Losses of the steps of a variant's config, from the weights that the Model Zoo began with.

    `data` has the features of texts, of (text, feature, LENGTH): ids, a mask, labels.
    """
    init = config["trainer"]["init"]
    backend = cstorch.backend("CPU", device_memory="4MiB")
    model = PlainGpt(init["model"])
    ((kind, options),) = init["optimizer"].items()
    options = dict(options)
    groups = groups_of(model, options.pop("weight_decay"))
    optimizer = getattr(cstorch.optim, kind)(groups, lr=0.1, **options)
    compiled = cstorch.compile(model, backend)
    if "sparsity" in init:
        sparsity = cstorch.sparse.configure(init["sparsity"])
        model.apply(sparsity)
        optimizer.apply(sparsity)
    model.load_state_dict({name.removeprefix("model."): one for name, one in state.items()})
    (rates,) = (one["LinearLR"] for one in init["schedulers"])
    schedule = cstorch.optim.lr_scheduler.LinearLR(optimizer, **rates)
    losses: list[float] = []

    @cstorch.trace
    def step(batch: Sequence[Tensor]) -> Tensor:
        loss: Tensor = compiled(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss

    note = cstorch.step_closure(lambda of: losses.append(of.item()))
    loader = cstorch.utils.data.DataLoader(lambda: list(batches(data.long())))
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=STEPS):
        note(step(batch))
    return losses


def batches(data: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for eight in data.split(8):
        yield eight[:, 0], eight[:, -1]
