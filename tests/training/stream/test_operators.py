"""The operators of a step are counted by kind, and take what rates of the machine say."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from openwafer.training.stream.plan.machine import (
    call_seconds,
    flops_per_second,
    memory_bytes_per_second,
    operators_seconds,
)
from openwafer.training.stream.plan.operators import Calls, CountingMeter, Operator

CPU = torch.device("cpu")


def product(num_tokens: int) -> tuple[Operator, Calls]:
    """The product of a linear layer of 3 x 4 weights."""
    layer, meter = nn.Linear(3, 4, bias=False), CountingMeter()
    with meter:
        layer(torch.ones(num_tokens, 3))
    (found,) = (item for item in meter.take_calls().items() if item[1].flops)
    return found


def test_calls_of_one_kind_are_counted_together() -> None:
    x = torch.ones(2, 3)
    with CountingMeter() as meter:
        for _ in range(5):
            x * 2
    assert [calls.number for calls in meter.take_calls().values()] == [5]


def test_calls_are_counted_from_where_they_were_taken_last() -> None:
    with CountingMeter() as meter:
        torch.ones(2, 3)
        meter.take_calls()
    assert meter.take_calls() == {}


def test_a_product_tells_its_flops_and_its_bytes() -> None:
    _, calls = product(num_tokens=5)
    assert calls.flops == 2 * 5 * 3 * 4
    assert calls.num_bytes == 4 * (5 * 3 + 3 * 4 + 5 * 4)


def test_attention_on_the_cpu_has_flops() -> None:
    queries = torch.ones(1, 2, 8, 4)
    with CountingMeter() as meter:
        nn.functional.scaled_dot_product_attention(queries, queries, queries)
    flops = [calls.flops for calls in meter.take_calls().values() if calls.flops]
    assert flops == [2 * 2 * (8 * 8 * 4) * 2]


def test_attention_of_grouped_heads_has_the_flops_of_every_query() -> None:
    queries, keys = torch.ones(1, 6, 8, 4, requires_grad=True), torch.ones(1, 2, 8, 4)
    with CountingMeter() as meter:
        attended = nn.functional.scaled_dot_product_attention
        attended(queries, keys, keys, enable_gqa=True).sum().backward()
    flops = [calls.flops for calls in meter.take_calls().values() if calls.flops]
    product = 2 * 6 * (8 * 8 * 4)
    assert flops == [2 * product, 5 * product]


@torch.library.custom_op("openwafer_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


def test_an_operator_whose_formula_is_registered_late_has_flops() -> None:
    @register_flop_formula(torch.ops.openwafer_tests.twice)
    def _(shape: tuple[int, ...], **_: object) -> int:
        return shape[0]

    with CountingMeter() as meter:
        twice(torch.ones(5))
    assert [calls.flops for calls in meter.take_calls().values() if calls.flops] == [5]


def test_a_view_reads_no_bytes() -> None:
    x = torch.ones(8, 8)
    with CountingMeter() as meter:
        x.t()
    assert [calls.num_bytes for calls in meter.take_calls().values()] == [0]


def test_twice_the_calls_take_twice_the_time() -> None:
    kind, calls = product(5)
    once = operators_seconds({kind: calls}, CPU)
    assert operators_seconds({kind: replace(calls, number=2)}, CPU) == 2 * once


def test_a_call_takes_the_longer_of_its_operations_and_its_bytes_beside_its_overhead() -> None:
    kind, _ = product(5)
    moves, computes = Calls(1, 1 << 20, torch.float32, 3), Calls(1 << 40, 1, torch.float32, 3)
    moving, computing = (operators_seconds({kind: calls}, CPU) for calls in (moves, computes))
    bytes_seconds = 2**20 / memory_bytes_per_second(CPU)
    product_seconds = 2**40 / flops_per_second(CPU, torch.float32)
    assert moving == pytest.approx(3 * (call_seconds(CPU) + bytes_seconds))
    assert computing == pytest.approx(3 * (call_seconds(CPU) + product_seconds))


def test_rates_are_measured_once_a_process() -> None:
    assert call_seconds(CPU) == call_seconds(CPU) > 0
    assert flops_per_second(CPU, torch.bfloat16) != flops_per_second(CPU, torch.float32)
