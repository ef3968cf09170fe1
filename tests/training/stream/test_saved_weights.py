"""What autograd saved is told to be a cast weight only where it can be made again."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from openwafer.training.stream.device.saved_weights import Geometry, cast_of_leaf

Chain = Callable[[Tensor], Tensor]
KNOWN: dict[str, Chain] = {
    "the weight of a linear layer": lambda w: w[0].bfloat16().t(),
    "an expert": lambda w: w[-1].bfloat16(),
    "a slice with a step": lambda w: w[:, 1:-1:2].half().transpose(-1, -2),
    "a part of a packed projection": lambda w: w.flatten(0, 1).chunk(3)[1].bfloat16().t(),
    "parts of unequal size": lambda w: w.split([1, 3])[1].bfloat16(),
    "negative dims": lambda w: w.permute(-1, 0, 1).unbind(-2)[3].half(),
    "dims of size one": lambda w: w[:1].squeeze(0).unsqueeze(-1).bfloat16().squeeze(-1),
    "an expanded row": lambda w: w[2, 3].expand(5, 8).bfloat16(),
    "another memory format": lambda w: w[None].to(memory_format=torch.channels_last)[0, 1:],
    "a view of another dtype": lambda w: w.to(torch.complex64).imag,
}
UNKNOWN: dict[str, Chain] = {
    "no cast": lambda w: w[0] * 1,
    "two casts": lambda w: w.bfloat16().float(),
    "a cast that was written in place": lambda w: _written(w.bfloat16()),
    "a view without a rule": lambda w: w.diagonal().bfloat16(),
    "the cast of a result": lambda w: (w + 1).bfloat16(),
}


def _written(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        tensor.add_(1)
    return tensor


def weight() -> nn.Parameter:
    return nn.Parameter(torch.arange(192.0).view(4, 6, 8))


@pytest.mark.parametrize("chain", KNOWN.values(), ids=KNOWN.keys())
def test_a_known_chain_is_made_again_with_its_values_and_strides(chain: Chain) -> None:
    leaf = weight()
    saved = chain(leaf)
    made = cast_of_leaf(saved)
    assert made is not None
    again = Geometry.of(saved).view_of(made.cast.repeated(leaf.detach().view(-1)))
    assert torch.equal(again, saved)
    assert again.stride() == saved.stride()


@pytest.mark.parametrize("chain", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_any_other_chain_is_an_activation(chain: Chain) -> None:
    assert cast_of_leaf(chain(weight())) is None
