"""What a user's own code does with activations that lie on a wafer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.fabric_device import Fabric, FabricOptions
from openwafer.fabric_device.linear import put
from openwafer.fabric_device.on_wafer import OnWafer
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from openwafer.training.stream.stream_options import StreamOptions
from tests.tables import case

X = torch.linspace(-1, 1, 18).view(6, 3)
WIDTH = 4
STREAMED = StreamOptions(min_layer_bytes=1, default_activations=Activations.KEEP)


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    backend = Fabric(FabricOptions(rows=2, columns=1))
    yield backend
    backend.close()


def built(*layers: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in layers))


def linear(features: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(features, outputs)


def on(
    model: nn.Module, optimizer: torch.optim.Optimizer, backend: Fabric | None
) -> AbstractContextManager[object]:
    """Weights stream to a backend if there is one."""
    if backend is None:
        return nullcontext()
    options = replace(STREAMED, backend=backend)
    return stream_weights(model, optimizer, device_memory="1MiB", options=options)


def trained(model: nn.Module, backend: Fabric | None) -> list[Tensor]:
    """Parameters after a step on half of the outputs' squares, whose gradient the outputs are."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with on(model, optimizer, backend):
        y = model(X)
        y.backward(y.detach())
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_an_activation_is_its_own_gradient_though_padded_tokens_have_a_bias(
    fabric: Fabric,
) -> None:
    layers = linear(3, WIDTH), nn.ReLU, lambda: Named(WIDTH, 2)
    torch.testing.assert_close(trained(built(*layers), fabric), trained(built(*layers), None))
    assert fabric.report().copies_off == {"padding": 1}


def test_a_later_model_on_the_same_wafer_may_be_wider_and_have_norms(fabric: Fabric) -> None:
    trained(built(linear(3, 2)), fabric)
    layers = linear(3, 20), lambda: nn.RMSNorm(20, eps=1e-6), linear(20, 2)
    torch.testing.assert_close(trained(built(*layers), fabric), trained(built(*layers), None))


class Parts(nn.Module):
    """Two layers, and what its user does between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)
        self.between: Callable[[Tensor], Tensor] = nn.functional.relu
        self.later = between

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.between(self.first(x)))
        return y


def evaluated(model: Parts, backend: Fabric) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with on(model, optimizer, backend):
        model(X).sum().backward()
        model.between = model.later
        with torch.no_grad():
            y: Tensor = model(X)
            return y.clone()


def test_a_call_without_gradients_before_any_training_is_on_the_wafer(fabric: Fabric) -> None:
    model = built(linear(3, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = model(X)
    with on(model, optimizer, fabric), torch.no_grad():
        torch.testing.assert_close(model(X).clone(), expected.detach())
    assert fabric.report().cycles_of("0", "forward") > 0


def zeroed(h: Tensor) -> Tensor:
    h[:, 0] = 0
    return h


@pytest.mark.parametrize("between", [Tensor.relu_, zeroed])
def test_an_activation_that_was_written_in_place_is_refused(
    between: Callable[[Tensor], Tensor], fabric: Fabric
) -> None:
    with pytest.raises(OpenwaferError, match=r"activation \(6, 4\) on the wafer was written in"):
        evaluated(Parts(between), fabric)


def test_an_activation_of_another_wafer_comes_over(fabric: Fabric) -> None:
    other = Fabric(fabric.options)
    kept = other.wafer(X.shape).rest(X)
    a, b = (OnWafer.of(one.wafer(X.shape).rest(X * 2), X.shape) for one in (other, fabric))
    assert torch.equal(a + b, X * 4)
    assert torch.equal(put(fabric.wafer(X.shape), a) + b, X * 4)
    assert torch.equal(OnWafer.of(kept, X.shape).clone(), X)
    other.close()


@pytest.mark.parametrize("look", [Tensor.numpy, Tensor.tolist])
def test_whoever_looks_at_an_activations_memory_sees_its_values(
    look: Callable[[Tensor], object], fabric: Fabric
) -> None:
    wafer = fabric.wafer(X.shape)
    held = wafer.resident.relu(wafer.rest(X).activation)
    found = look(OnWafer.of(wafer.made(held), X.shape))
    assert repr(found) == repr(look(X.relu()))


class Normed(nn.Linear):
    """Calls a norm that no module of the model has."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(super().forward(x), (WIDTH,), self.bias, eps=1.0)


def test_a_norm_with_an_epsilon_of_its_own_is_refused(fabric: Fabric) -> None:
    layers = linear(3, WIDTH), lambda: nn.RMSNorm(WIDTH, eps=1e-6), lambda: Normed(WIDTH, WIDTH)
    with pytest.raises(OpenwaferError, match=r"'2', a Normed[^$]*rms_norm of \(4,\) with eps 1,"):
        trained(built(*layers), fabric)


class Unit(nn.Module):
    """Divides by lengths, which are zeros where a step is walked without values."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x / x.norm(dim=-1, keepdim=True)
        return y


def test_a_division_between_layers_does_not_end_the_walk_of_a_step(fabric: Fabric) -> None:
    layers = linear(3, WIDTH), Unit, linear(WIDTH, 2)
    torch.testing.assert_close(trained(built(*layers), fabric), trained(built(*layers), None))


class Gated(nn.Linear):
    """Multiplies all features by the first one."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * y[..., :1]


def test_a_product_with_a_feature_that_is_repeated_is_refused_in_words(fabric: Fabric) -> None:
    words = r"'0', a Gated[^$]*no kernel for torch's operand whose features or tokens are repeated"
    with pytest.raises(OpenwaferError, match=words):
        trained(built(lambda: Gated(3, WIDTH)), fabric)


class Named(nn.Linear):
    """Gives its inputs by name."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(input=x, weight=self.weight, bias=self.bias)


def test_a_loss_of_some_tokens_is_torchs(fabric: Fabric) -> None:
    def loss_of(backend: Fabric | None) -> float:
        model = built(linear(3, WIDTH))
        with on(model, torch.optim.SGD(model.parameters(), lr=0.1), backend):
            loss = nn.functional.cross_entropy(model(X)[:-1], torch.arange(5) % WIDTH)
            loss.backward()
            return loss.item()

    assert loss_of(fabric) == pytest.approx(loss_of(None), rel=1e-6)


class Headed(nn.Linear):
    """Attention of some heads to its own outputs, of one sample."""

    def __init__(self, heads: int) -> None:
        super().__init__(8, 8)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).view(1, -1, self.heads, 8 // self.heads).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)
        return out.transpose(1, 2).reshape(-1, 8)


@pytest.mark.slow
def test_heads_of_two_shapes_are_torchs_and_load_a_program_each_time(fabric: Fabric) -> None:
    def stepped(backend: Fabric | None) -> list[Tensor]:
        model = built(lambda: Headed(2), lambda: Headed(1), linear(8, WIDTH))
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with on(model, optimizer, backend):
            nn.functional.cross_entropy(model(x), torch.arange(8) % WIDTH).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(stepped(fabric), stepped(None))
    # That of the second heads, and the first heads' again; both have the loss, which the plan has
    # taken for the loop's own.
    assert fabric.report().loads == 2


class Entries(nn.Module):
    """Embeddings of a few ids, by the function."""

    def __init__(self, ids: list[int], **options: object) -> None:
        super().__init__()
        self.entries, self.ids, self.options = nn.Embedding(7, WIDTH), torch.tensor(ids), options

    def forward(self, x: Tensor) -> Tensor:
        weight = self.entries.weight
        return nn.functional.embedding(self.ids, weight, **self.options)  # type: ignore[arg-type]


def infinite(entries: Entries) -> Entries:
    nn.init.constant_(entries.entries.weight[2:4], torch.inf)
    return entries


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            infinite(Entries([0, 3])),
            "entry of token 3 has values that are infinite[^$]*1 of 2 entries",
        ),
        (Entries([0, -1]), "token -1 in an embedding of 7 entries"),
        case(Entries([7, 0]), "token 7 in an embedding of 7 entries", by_default=False),
        (Entries([0, 1], padding_idx=1), "torch's embedding with other options inside it"),
    ],
)
def test_an_embedding_that_is_not_of_entries_as_they_are_is_refused(
    entries: Entries, words: str, fabric: Fabric
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        trained(nn.Sequential(entries), fabric)
