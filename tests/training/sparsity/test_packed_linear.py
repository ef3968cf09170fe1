"""A packed linear map gives the bits of the dense one whose dropped weights are zero."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.packed_linear import PackedLinear, pack_linears
from openwafer.training.sparsity.pattern import Pattern

MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(24, 40),
    "without bias": lambda: nn.Linear(24, 40, bias=False),
    "turned": lambda: Conv1D(40, 24),
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: torch.randn(7, 24),
    "batch": lambda: torch.randn(3, 5, 24),
    "strided": lambda: torch.randn(5, 3, 24).transpose(0, 1),
    "nothing": lambda: torch.randn(0, 24),
}


def mask_of(weight: Tensor) -> Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(3)) < 0.3


def masked_and_packed(module: nn.Module, spare: int = 0) -> tuple[nn.Module, nn.Module]:
    """The same weights twice; the packed ones have room for more."""
    dense = nn.Sequential(module)
    packed = copy.deepcopy(dense)
    mask = mask_of(module.get_parameter("weight"))
    with torch.no_grad():
        module.get_parameter("weight").mul_(mask)
    pack_linears(packed, {"0.weight": int(mask.sum()) + spare}, lambda name, weight: mask)
    return dense, packed


def results(model: nn.Module, inputs: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    """Output and gradients, that of the weight last and in full shape but for what is dropped."""
    given = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        output = model(given)
    (output.float() ** 2).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    weight = found.pop("0.weight")
    assert weight is not None
    assert given.grad is not None
    mask = mask_of(weight) if weight.ndim == 2 else None
    kept = weight if mask is None else weight[mask]
    return [output, given.grad, *(g for g in found.values() if g is not None), kept]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_results_and_gradients_have_the_bits_of_the_masked_dense_module(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor], dtype: torch.dtype | None
) -> None:
    if build is MODULES["turned"] and inputs is INPUTS["strided"]:
        inputs = INPUTS["batch"]  # Conv1D takes no others.
    torch.manual_seed(0)
    dense, packed = masked_and_packed(build())
    given = inputs()
    pairs = zip(results(dense, given, dtype), results(packed, given, dtype), strict=True)
    assert all(torch.equal(expected, found) for expected, found in pairs)


def test_room_behind_the_kept_values_has_no_part_and_no_gradient() -> None:
    dense, packed = masked_and_packed(nn.Linear(24, 40), spare=9)
    inputs = torch.randn(4, 24)
    assert torch.equal(packed(inputs), dense(inputs))
    gradient = results(packed, inputs, None)[-1]
    assert gradient[:-9].any()
    assert not gradient[-9:].any()


def test_the_packed_module_takes_the_place_and_the_bias_of_the_dense_one() -> None:
    model = nn.Sequential(nn.Linear(24, 40)).eval()
    bias = model[0].bias
    tenth = torch.arange(960).view(40, 24) < 96
    pack_linears(model, {"0.weight": 96}, lambda name, weight: tenth)
    packed = model[0]
    assert isinstance(packed, PackedLinear)
    assert packed.bias is bias
    assert not packed.training
    assert (packed.in_features, packed.out_features) == (24, 40)
    assert "sparsity=0.9" in repr(packed)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_state_dict_brings_values_and_pattern(has_bias: bool) -> None:
    saved, loaded = (
        masked_and_packed(nn.Linear(24, 40, bias=has_bias), spare=9)[1] for _ in range(2)
    )
    other = loaded[0]  # type: ignore[index]
    other.take(torch.zeros(40, 24), mask_of(torch.zeros(40, 24)).roll(1, 1))
    loaded.load_state_dict(saved.state_dict())
    inputs = torch.randn(7, 24)
    assert other.pattern == saved[0].pattern  # type: ignore[index]
    assert torch.equal(loaded(inputs), saved(inputs))


def refused(model: nn.Module, name: str) -> OpenwaferError:
    with pytest.raises(OpenwaferError, match="sparse") as caught:
        pack_linears(model, {name: 5}, None)
    return caught.value


def hooked() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: None)
    return nn.Sequential(module)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3)), "0.weight"),
        (lambda: nn.Sequential(nn.MultiheadAttention(4, 2)), "0.out_proj.weight"),
        (lambda: nn.Sequential(nn.MultiheadAttention(4, 2)), "0.in_proj_weight"),
        (lambda: nn.Sequential(nn.Linear(4, 4)), "0.bias"),
        (hooked, "0.weight"),
    ],
)
def test_a_weight_that_no_plain_linear_map_has_is_refused(
    build: Callable[[], nn.Module], name: str
) -> None:
    assert f"'{name}' belongs to a" in str(refused(build(), name))


def test_a_weight_of_two_modules_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert "used in 2 places: 0.weight, 1.weight" in str(refused(model, "0.weight"))


def test_a_mask_that_keeps_more_than_there_is_room_for_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(OpenwaferError, match=r"keeps 16 positions.*room for 5"):
        pack_linears(model, {"0.weight": 5}, lambda name, weight: torch.ones_like(weight).bool())


def test_bytes_of_another_weight_are_refused() -> None:
    pattern = Pattern.from_mask(mask_of(torch.zeros(8, 8)))
    packed = PackedRoom.smallest((8, 8), 30).packed(pattern)
    with pytest.raises(OpenwaferError, match=r"are no pattern of .8, 8. with room for 20"):
        PackedRoom.smallest((8, 8), 20).pattern(packed)
