"""Operators on sparse weights can be timed without a weight: by calls with made-up patterns."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from openwafer.training.sparsity import choice
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.operators import CallsByKind, CountingMeter
from tests.tables import some

CPU = torch.device("cpu")
FEATURES, OUTPUTS, TOKENS, CAPACITY = 40, 24, 300, 200


def calls_of_a_step(products: Products, *, is_turned: bool = False) -> CallsByKind:
    """Of one sparse weight, with room for more than it keeps."""
    linear = Conv1D(OUTPUTS, FEATURES) if is_turned else nn.Linear(FEATURES, OUTPUTS)
    model = nn.Sequential(linear)
    pack_linears(model, {"0.weight": CAPACITY}, lambda _, w: torch.eye(*w.shape).bool(), products)
    inputs = torch.randn(TOKENS, FEATURES, requires_grad=True)
    with CountingMeter() as meter:
        model(inputs).sum().backward()
    calls = meter.take_calls()
    return {kind: each for kind, each in calls.items() if kind.function.namespace == "openwafer"}


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(("products", "number"), [(Products.SPARSE, 3), (Products.DENSE, 2)])
def test_every_operator_on_sparse_weights_can_be_tried(
    products: Products, number: int, is_turned: bool
) -> None:
    kinds = calls_of_a_step(products, is_turned=is_turned)
    assert len(kinds) == number
    for kind in kinds:
        call, times = kind.make_trial(CPU)
        assert kind.can_be_tried
        assert times == 1
        call()


ROWS, COLUMNS, MANY_TOKENS, ROOM = 1 << 13, 1 << 10, 1 << 14, 1 << 18


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def large_calls(is_turned: bool) -> dict[str, tuple[object, ...]]:
    """Of a weight of twice as many elements as are tried, and tokens by the thousand."""
    features, outputs = (ROWS, COLUMNS) if is_turned else (COLUMNS, ROWS)
    values, inputs, gradient = (
        empty(ROOM),
        empty(MANY_TOKENS, features),
        empty(MANY_TOKENS, outputs),
    )
    return {
        "spread": (values, empty(1), "csr", ROWS, COLUMNS),
        "gather": (empty(ROWS, COLUMNS), empty(1), "csr", ROOM),
        "walk": (empty(1), "csr", ROWS, COLUMNS, ROOM),
        "sparse_linear": (inputs, values, None, empty(1), outputs, is_turned),
        "sparse_linear_backward": (gradient, inputs, values, empty(1), (features, ROOM), is_turned),
    }


@pytest.mark.parametrize("is_turned", some([False, True], True))
def test_a_trial_of_a_large_call_has_fewer_rows_and_tokens(is_turned: bool) -> None:
    threads = torch.get_num_threads()
    for name, args in large_calls(is_turned).items():
        operator = getattr(torch.ops.openwafer, name).default
        trial = choice.trial_of(operator, CPU, args)
        tokens = min(MANY_TOKENS, threads * choice.MOST_PRODUCTS // (ROOM // 2))
        assert trial.times == 2 * (MANY_TOKENS / tokens if "linear" in name else 1)
        operator(*trial.args)


def test_the_pattern_of_a_trial_keeps_nearly_what_there_is_room_for() -> None:
    [walk, *_] = calls_of_a_step(Products.SPARSE)
    kinds = tuple(torch.empty(1) if n == 0 else value for n, value in enumerate(walk.args))
    packed = choice.trial_of(walk.function, CPU, kinds).args[0]
    num_kept = int(packed[:8].view(torch.int64))
    assert 0.8 * CAPACITY < num_kept <= CAPACITY
