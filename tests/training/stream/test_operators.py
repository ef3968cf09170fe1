"""The operators of a step are counted by kind, and can be called again."""

from contextlib import nullcontext
from dataclasses import replace
from time import thread_time

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode
from openwafer.training.stream.plan.machine import operators_seconds
from openwafer.training.stream.plan.operators import Calls, CountingMeter, Operator, TensorKind

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


def test_calls_without_memory_are_those_on_memory_by_kind_and_number() -> None:
    def work() -> None:
        for number in (1, 2, 2, 1):
            x = torch.ones(2, 3)
            (x * number, x / number, x.t() * 1.0, torch.cat([x, x]))

    counted = []
    for context in (RememberingFakeMode(), nullcontext()):
        with context as mode, CountingMeter() as meter:
            meter.walks(mode)
            work()
            work()
        counted.append({kind: calls.number for kind, calls in meter.take_calls().items()})
    assert counted[0] == counted[1]
    assert set(counted[0].values()) == {4, 8}


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


def test_a_kind_makes_a_tensor_of_its_own_shape_and_strides() -> None:
    kind = TensorKind.of(torch.ones(3, 4).t())
    assert TensorKind.of(kind.make(CPU)) == kind


def test_a_call_that_is_made_again_returns_what_the_first_one_would() -> None:
    result = product(num_tokens=5)[0].make_call(CPU)()
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, torch.full((5, 4), 3.0))


def test_the_random_numbers_of_a_run_are_not_touched() -> None:
    with CountingMeter() as meter:
        nn.functional.dropout(torch.ones(100), 0.5)
    before = torch.get_rng_state()
    operators_seconds(meter.take_calls(), CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_product_finds_no_weight_in_a_cache_where_much_lies_between_its_uses() -> None:
    with CountingMeter() as meter:
        nn.Linear(256, 256, bias=False)(torch.ones(1, 256))
    ((kind, calls),) = ((kind, one) for kind, one in meter.take_calls().items() if one.flops)
    alone, among_many = (
        operators_seconds({kind: replace(calls, number=number)}, CPU, clock=thread_time) / number
        for number in (1, 1000)
    )
    assert among_many > alone


def test_twice_the_calls_take_twice_the_time() -> None:
    kind, calls = product(5)
    once = operators_seconds({kind: calls}, CPU)
    assert operators_seconds({kind: replace(calls, number=2)}, CPU) == 2 * once
