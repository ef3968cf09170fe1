"""Fourier transforms as a kernel, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import FftPlan
from tests.tables import some

NORMS = ("backward", "ortho", "forward")


def numbers(shape: tuple[int, ...], seed: int) -> NDArray[np.complex64]:
    """Of many sizes."""
    rng = np.random.default_rng(seed)
    real, imaginary = rng.normal(size=(2, *shape)) * 2.0 ** rng.integers(-6, 2, shape)
    return np.asarray(real + 1j * imaginary, np.complex64)


def check_transform(plan: FftPlan, count: int, is_inverse: bool, norm: Any, seed: int) -> None:
    """Transform, looking for mistakes, and compare; numbers of f16 as they are held."""
    values = numbers((count, *plan.num_dims * [plan.length]), seed)
    if plan.precision == "f16":
        parts = np.stack([values.real, values.imag], -1).astype(np.float16).astype(np.float32)
        values = np.ascontiguousarray(parts).view(np.complex64)[..., 0]
    options = {"is_inverse": is_inverse, "norm": norm}
    found = plan.run(values, check=True, **options).values
    axes = tuple(range(1, values.ndim))
    transform = np.fft.ifftn if is_inverse else np.fft.fftn
    wrong = (found - transform(values.astype(complex), axes=axes, norm=norm)).reshape(count, -1)
    assert (np.linalg.norm(wrong, axis=1) <= plan.error_bound(values, **options)).all()
    assert np.array_equal(plan.run(values, **options).values, found)


PLANS = (
    kernels.plan_fft(4, 3, (2, 2), arch="wse2"),
    kernels.plan_fft(4, 2, (2, 2), precision="f16"),
    kernels.plan_fft(8, 1, (2, 2)),
)


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.booleans(), st.sampled_from(NORMS), st.integers(0, 2**32 - 1))
def test_transforms_are_numpys_up_to_their_bound(
    plan: FftPlan, is_inverse: bool, norm: str, seed: int
) -> None:
    check_transform(plan, 1, is_inverse, norm, seed)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_transforms_on_any_square_are_numpys(data: st.DataObject) -> None:
    length, width = data.draw(
        st.sampled_from([(2, 1), (4, 4), (8, 1), (8, 2), (8, 4), (16, 2), (16, 8)])
    )
    plan = kernels.plan_fft(
        length,
        data.draw(st.integers(1, 3)),
        (width, width),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(("f16", "f32"))),
    )
    count = data.draw(st.integers(1, plan.most_transforms))
    norm, seed = data.draw(st.sampled_from(NORMS)), data.draw(st.integers(0, 2**32 - 1))
    check_transform(plan, count, data.draw(st.booleans()), norm, seed)


@pytest.mark.parametrize("num_dims", some([1, 2, 3], 2))
def test_a_transform_takes_what_its_plan_says(num_dims: int) -> None:
    plan = kernels.plan_fft(8, num_dims, (4, 4), arch="wse2")
    cycles = plan.run(numbers((1, *num_dims * [8]), 1)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "num_dims", "width", "arch"),
    [(8, 3, 4, "wse3"), (16, 2, 8, "wse2"), (16, 3, 16, "wse2"), (32, 2, 32, "wse2")],
)
def test_large_transforms_take_what_their_plans_say(
    length: int, num_dims: int, width: int, arch: str
) -> None:
    plan = kernels.plan_fft(length, num_dims, (width, width), arch=arch)
    cycles = plan.run(numbers((1, *num_dims * [length]), 1)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize("length", [32, 64, 128])
def test_a_pass_is_planned_with_less_than_the_published_formula(length: int) -> None:
    plan = kernels.plan_fft(length, 3, (length, length), arch="wse2")
    levels = length.bit_length() - 1
    assert plan.pass_cycles < 6.5 * length * levels + 64 * length + 36 * levels


def test_one_transform_needs_no_dim_for_it() -> None:
    values = numbers((4,), 1)
    found = kernels.fft(values, (2, 2)).values
    assert found.shape == (4,)
    assert np.allclose(found, np.fft.fft(values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "size", "words"),
    [
        (np.ones(4), (2, 2), "values are float64; a transform takes complex64"),
        (np.ones(6, np.complex64), (2, 2), "6 numbers along a dim"),
        (np.ones(4, np.complex64), (2, 1), "2 rows and 1 columns of PEs for 4 numbers"),
        (np.ones(4, np.complex64), (8, 8), "8 rows and 8 columns of PEs for 4 numbers"),
        (np.ones((17, 4), np.complex64), (2, 2), "the plan is for 1 to 16 transforms"),
        (np.ones((1, 1, 4), np.complex64), (2, 2), r"values have the shape \(1, 1, 4\)"),
        (np.full(4, np.nan, np.complex64), (2, 2), "4 of the 4 values of values are no numbers"),
        (np.ones(64, np.complex64), (2, 2), r"a tile of \(32, 32, 64\) complex numbers of f32"),
    ],
)
def test_what_cannot_be_transformed_is_refused(
    values: Any, size: tuple[int, int], words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.fft(values, size)


def test_a_plan_of_a_transform_says_what_it_cannot_do() -> None:
    with pytest.raises(OpenwaferError, match="num_dims is 4"):
        kernels.plan_fft(4, 4, (2, 2))
    with pytest.raises(OpenwaferError, match="a transform has no sums, so f16-f32 says nothing"):
        kernels.plan_fft(4, 1, (2, 2), precision="f16-f32")
