"""Transposes of matrices on rectangles of PEs, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import TransposePlan
from tests.tables import checkerboard


def check_transpose(plan: TransposePlan, seed: int) -> int:
    """Transpose numbers, looking for mistakes, and give the cycles."""
    a = np.random.default_rng(seed).normal(size=plan.shape).astype(plan.precision.given)
    result = plan.run(a, check=True)
    assert result.values.tobytes() == a.T.tobytes()
    return result.cycles


@pytest.mark.parametrize(
    ("size", "arch", "precision"),
    checkerboard(
        ((3, 3), (2, 4), (4, 2), (1, 3), (3, 1)), ("wse2", "wse3"), ("f16", "f32"), one_in=7
    ),
)
def test_a_transpose_takes_the_cycles_of_the_published_model(
    size: tuple[int, int], arch: str, precision: str
) -> None:
    shape = 5 * size[0] - 1, 4 * size[1] - 1
    plan = kernels.plan_transpose(shape, size, arch=arch, precision=precision)
    assert abs(check_transpose(plan, 1) - plan.cycles) <= 0.1 * plan.cycles


# The corner's PE notes two parts and turns switches back; words from the west, from the corner and
# from columns behind the square are the last ones.
@pytest.mark.parametrize(
    ("size", "tile", "arch"),
    [
        ((2, 2), 1, "wse2"),
        ((3, 3), 1, "wse3"),
        ((4, 1), 2, "wse2"),
        ((2, 4), 2, "wse3"),
        ((1, 6), 3, "wse2"),
        ((1, 3), 1, "wse3"),
    ],
)
def test_a_small_transpose_takes_exactly_what_its_instructions_and_words_say(
    size: tuple[int, int], tile: int, arch: str
) -> None:
    plan = kernels.plan_transpose((tile * size[0], tile * size[1]), size, arch=arch)
    assert check_transpose(plan, 2) == plan.cycles


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_a_transpose_on_any_rectangle_has_every_bit(data: st.DataObject) -> None:
    plan = kernels.plan_transpose(
        (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))),
        (data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(("f32", "f16"))),
    )
    check_transpose(plan, data.draw(st.integers(0, 2**32 - 1)))


def test_values_that_are_no_numbers_are_moved_too() -> None:
    a = np.array([[np.nan, -0.0], [np.inf, 1e-40]], np.float32)
    assert kernels.transpose(a, (1, 1), arch="wse2").values.tobytes() == a.T.tobytes()


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((0, 2), (1, 1), r"a matrix of the shape \(0, 2\)"),
        ((2, 2), (1174, 1), "1174 rows and 1174 columns of PEs; wse3 has room for"),
        ((200, 200), (2, 2), "two tiles of 100 x 100 elements of f32 takes 86,144 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, int], size: tuple[int, int], words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_transpose(shape, size)


def test_a_vector_has_no_transpose() -> None:
    with pytest.raises(OpenwaferError, match=r"A of the shape \(4,\); 2 dims \(rows, columns\)"):
        kernels.transpose(np.ones(4, np.float32), (1, 1))
