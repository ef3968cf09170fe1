"""Clipping in pieces against `torch.nn.utils.clip_grad_norm_`."""

import math
import re
from typing import Any

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.step import clip_coefficient, tensor_norms, total_norm
from openwafer.training.torch_private import FakeTensorMode, TorchDispatchMode

SHAPES = ((), (17,), (63, 5), (211, 317), (9,), (5, 5))
F32, BF16, F64, C64 = torch.float32, torch.bfloat16, torch.float64, torch.complex64


def _with_gradients(*dtypes: torch.dtype) -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(11)
    params = []
    for index, shape in enumerate(SHAPES):
        dtype = dtypes[index % len(dtypes)]
        params.append(torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))
        params[-1].grad = torch.randn(shape, generator=source, dtype=_drawn(dtype)).to(dtype)
    return params


def _drawn(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_complex else F32


def _gradients(params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad.clone() for p in params if p.grad is not None]


@pytest.mark.parametrize("dtypes", [(F32,), (BF16,), (F32, BF16), (F32, C64), (BF16, F64, C64)])
@pytest.mark.parametrize("norm_type", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.1, 1e9])
def test_the_pieces_make_the_bits_of_the_whole(
    dtypes: tuple[torch.dtype, ...], norm_type: float, max_norm: float
) -> None:
    params = _with_gradients(*dtypes)
    gradients = _gradients(params)
    total = total_norm(tensor_norms(gradients, norm_type), norm_type)
    scaled = [g.mul(clip_coefficient(total, max_norm)) for g in gradients]
    expected = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
    assert torch.equal(total, expected)
    assert all(map(torch.equal, scaled, _gradients(params)))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_bf16_gradients_of_fp32_masters_have_the_norm_of_their_fp32_values(
    norm_type: float,
) -> None:
    stored = _gradients(_with_gradients(BF16))
    norms = tensor_norms(stored, norm_type, dtype=F32)
    assert norms == tensor_norms([g.float() for g in stored], norm_type)


def test_the_norm_of_a_complex_gradient_beside_fp32_masters_is_of_both_its_parts() -> None:
    [norm] = tensor_norms([torch.tensor([3.0 + 4.0j])], dtype=F32)
    assert norm == 5.0


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_a_norm_of_order_two_does_not_depend_on_the_number_of_threads(num_threads: int) -> None:
    gradient = torch.randn(300_007, generator=torch.Generator().manual_seed(2))
    expected = tensor_norms([gradient])
    torch.set_num_threads(num_threads)
    assert tensor_norms([gradient]) == expected


def test_no_gradients_have_the_norm_zero() -> None:
    assert clip_coefficient(total_norm([]), 1.0) == 1.0


def test_a_norm_that_is_not_finite_is_let_through_as_torch_does() -> None:
    total = total_norm(tensor_norms([torch.tensor([math.nan]), torch.ones(3)]))
    assert math.isnan(clip_coefficient(total, 1.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_an_error_on_request(value: float) -> None:
    norms = tensor_norms([torch.tensor([1.0, value]), torch.ones(3)])
    text = f"total norm is {value}, so that they cannot be clipped\n  = note: 1 of 2 tensors"
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        total_norm(norms, error_if_nonfinite=True)


class Stacked(TorchDispatchMode):
    """Notes the devices of what is stacked: a GPU stacks only what it has, which no fake tensor
    of one number minds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.devices: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.stack.default:
            self.devices += [one.device.type for one in args[0]]
        return func(*args, **(kwargs or {}))


def test_norms_in_host_memory_go_where_the_others_are() -> None:
    with FakeTensorMode(), Stacked() as stacked:
        total = total_norm([torch.ones((), device=name) for name in ("cpu", "cuda", "cpu")])
    assert stacked.devices == ["cuda"] * 3
    assert total.device.type == "cuda"
