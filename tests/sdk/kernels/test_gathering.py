"""Values of all PEs in one and back, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import GatherPlan
from tests.tables import checkerboard


def check_values(plan: GatherPlan, seed: int) -> None:
    """Move any bits, numbers or not, looking for mistakes."""
    shape = (plan.rows, plan.columns, plan.length)
    num_bytes = plan.precision.given.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, num_bytes), np.uint8)
    values = bits.view(plan.precision.given)[..., 0]
    assert plan.run(values, check=True).values.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("is_scatter", "size", "arch", "precision"),
    checkerboard(
        (False, True), ((2, 3), (1, 4), (3, 1)), ("wse2", "wse3"), ("f16", "f32"), one_in=6
    ),
)
def test_every_bit_comes_to_its_place(
    is_scatter: bool, size: tuple[int, int], arch: str, precision: str
) -> None:
    options: dict[str, Any] = {"is_scatter": is_scatter, "arch": arch, "precision": precision}
    check_values(kernels.plan_gather(size, 5, **options), 1)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_every_bit_comes_to_its_place_on_any_rectangle(data: st.DataObject) -> None:
    plan = kernels.plan_gather(
        (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))),
        data.draw(st.integers(1, 40)),
        is_scatter=data.draw(st.booleans()),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(("f32", "f16"))),
    )
    check_values(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize(
    ("is_scatter", "size", "arch"),
    checkerboard((False, True), ((3, 4), (1, 12)), ("wse2", "wse3"), one_in=4),
)
def test_values_take_the_cycles_of_the_published_model(
    is_scatter: bool, size: tuple[int, int], arch: str
) -> None:
    plan = kernels.plan_gather(size, 16, is_scatter=is_scatter, arch=arch)
    cycles = plan.run(np.ones((*size, 16), np.float32)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize(("size", "length"), [((1, 3), 1), ((2, 1), 1)])
def test_few_values_take_exactly_what_instructions_and_words_say(
    size: tuple[int, int], length: int
) -> None:
    plan = kernels.plan_gather(size, length, is_scatter=False)
    assert plan.run(np.ones((*size, length), np.float32)).cycles == plan.cycles


def test_both_ways_are_the_identity_of_arrays() -> None:
    values = np.arange(30, dtype=np.float16).reshape(2, 3, 5)
    moves = kernels.gather(values, arch="wse2"), kernels.scatter(values.astype(np.float32)[:, :2])
    assert np.array_equal(moves[0].values, values)
    assert np.array_equal(moves[1].values, values[:, :2])


@pytest.mark.parametrize(
    ("size", "length", "options", "words"),
    [
        ((2, 2), 0, {}, "0 elements a PE"),
        ((0, 2), 1, {}, "0 rows and 2 columns of PEs"),
        ((10, 10), 200, {}, "200 elements of each of 100 PEs takes 86,144 bytes of a PE"),
        ((2, 2), 4, {"precision": "f16-f32"}, "precision is 'f16-f32', which has sums"),
    ],
)
def test_what_no_root_can_have_is_refused(
    size: tuple[int, int], length: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_gather(size, length, **options)


def test_values_without_a_dim_for_each_line_of_pes_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"values of the shape \(4,\); 3 dims \(rows of PEs"):
        kernels.scatter(np.ones(4, np.float32))
