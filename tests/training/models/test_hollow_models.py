"""A model built without its weights is the model in all else, or is not built so."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from openwafer.training.models import GptConfig, TransformersModel, build
from openwafer.training.models.build import build_without_weights
from openwafer.training.models.hollow import build_hollow
from tests.training.architectures import Architecture, family_rows

# Their constructors fill weights at random before anybody can tell that they are weights, or make
# buffers of weights, as I-BERT does.
NEEDING = ("qwen3-next", "wav2vec2", "ibert")


@family_rows
def test_a_model_of_the_library_has_its_buffers_without_its_weights(row: Architecture) -> None:
    described = TransformersModel(row.model_class, config=row.config)
    hollow, whole = build_without_weights(described, 3), build(described, 3)
    if row.name in NEEDING:
        assert hollow is None
        return
    assert hollow is not None
    assert _shapes(hollow) == _shapes(whole)
    buffers = dict(hollow.named_buffers())
    assert buffers.keys() == dict(whole.named_buffers()).keys()
    assert all(torch.equal(buffers[name], value) for name, value in whole.named_buffers())


def test_no_weight_has_memory_and_tied_ones_stay_tied() -> None:
    hollow = build_without_weights(GptConfig(vocab_size=64, hidden_size=32, num_heads=2), seed=0)
    assert hollow is not None
    assert {p.untyped_storage().nbytes() for p in hollow.parameters()} == {4}
    assert hollow.get_parameter("head.weight") is hollow.get_parameter("embedding.weight")


def test_no_random_number_is_drawn() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert build_hollow(lambda: nn.TransformerEncoderLayer(16, 2)) is not None
    assert torch.equal(torch.get_rng_state(), before)


class Projecting(nn.Module):
    """Features that are drawn after the weights, and stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("features", torch.randn(4, 4))


class Masking(nn.Module):
    """Keeps what it has drawn where nobody looks for tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept = [torch.empty(4).bernoulli_(0.5)]


class Scaled(nn.Module):
    """Remembers how large its weights began."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("norm", self.linear.weight.detach().norm())


class Reading(nn.Module):
    """Has an attribute that depends on a weight's value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.is_positive = bool(self.linear.weight.sum() > 0)


class Ordered(nn.Module):
    """Has an attribute that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(4).tolist()


@pytest.mark.parametrize("make", [Projecting, Masking, Scaled, Reading, Ordered])
def test_a_constructor_that_needs_the_weights_is_found_out(make: Callable[[], nn.Module]) -> None:
    assert build_hollow(make) is None


class Listed(nn.Module):
    """Also keeps its parameter in a list."""

    def __init__(self) -> None:
        super().__init__()
        own = nn.Parameter(torch.randn(4))
        self.weight, self.listed = own, [own]


def test_a_parameter_stays_the_object_it_was() -> None:
    hollow = build_hollow(Listed)
    assert isinstance(hollow, Listed)
    assert hollow.listed[0] is hollow.weight


def _shapes(model: nn.Module) -> dict[str, object]:
    return {
        name: (p.shape, p.dtype, p.requires_grad, p.device)
        for name, p in model.named_parameters(remove_duplicate=False)
    }
