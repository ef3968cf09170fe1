"""Steps of stencils on rectangles of PEs, against scipy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import correlate

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels import Source, Stencil, StencilPlan
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.star import BOUNDARIES
from tests.examples import examples
from tests.tables import covering

Field = NDArray[np.float64]


def star(reaches: tuple[int, ...], **others: Any) -> Stencil:
    """A star with a coefficient of its own for each offset."""
    offsets = {(0,) * len(reaches)}
    for axis, reach in enumerate(reaches):
        for n in range(-reach, reach + 1):
            offsets.add(tuple(n if i == axis else 0 for i in range(len(reaches))))
    numbers = np.random.default_rng(7).normal(0, 0.3, len(offsets))
    return Stencil(dict(zip(sorted(offsets), numbers.tolist(), strict=True)), **others)


def by_scipy(stencil: Stencil, now: Field, last: Field, steps: int) -> Field:
    """The steps as correlations with a kernel; cells outside are zeros."""
    kernel = np.zeros([2 * r + 1 for r in stencil.reach[: now.ndim]])
    for offset, number in stencil.coefficients.items():
        kernel[tuple(np.add(offset, stencil.reach[: now.ndim]))] = number
    rim = np.ones(now.shape, bool)
    rim[tuple(slice(r, max(r, n - r)) for r, n in zip(stencil.reach, now.shape, strict=False))] = 0
    for step in range(steps):
        sums = correlate(now, kernel, mode="constant") * (
            1 if stencil.scale is None else stencil.scale
        )
        new = sums + stencil.own * now + stencil.before * last
        if stencil.source is not None and step < len(stencil.source.values):
            new[stencil.source.cell] += stencil.source.values[step]
        now, last = np.where(rim & (stencil.boundary == "fixed"), now, new), now
    return now


def check_steps(plan: StencilPlan, steps: int, seed: int) -> None:
    """Do steps with numbers of many sizes, looking for mistakes, and compare."""
    rng = np.random.default_rng(seed)
    shape = plan.shape[: plan.stencil.num_dims]
    now, last = (rng.normal(size=shape) * 2.0 ** rng.integers(-9, 3, shape) for _ in range(2))
    given = plan.precision.given
    now, last = now.astype(given), last.astype(given)
    result = plan.run(now, steps, last, check=True)
    assert result.values.dtype == plan.precision.sums
    expected = by_scipy(plan.stencil, now.astype(float), last.astype(float), steps)
    assert (np.abs(result.values - expected) <= plan.error_bound(now, steps, last)).all()
    assert np.array_equal(plan.run(now, steps, last).values, result.values)


@st.composite
def stencils(draw: st.DrawFn, most_reach: int, shape: tuple[int, ...]) -> Stencil:
    """A star with some of what a description may have, for an array of the shape."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    scale = rng.normal(size=shape).astype(np.float32) if draw(st.booleans()) else None
    added = rng.normal(size=draw(st.integers(1, 3))).astype(np.float32)
    cell = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return star(
        tuple(draw(st.integers(0, most_reach)) for _ in shape),
        own=draw(st.sampled_from((0.0, 1.0))),
        before=draw(st.sampled_from((0.0, -0.5))),
        scale=scale,
        source=draw(st.none() | st.just(Source(cell, added))),
        boundary=draw(st.sampled_from(("zero", "fixed"))),
    )


@st.composite
def plans(draw: st.DrawFn) -> StencilPlan:
    """Steps of any star on a small rectangle."""
    shape = tuple(draw(st.integers(1, 8)) for _ in range(draw(st.integers(2, 3))))
    arch, precision = draw(st.sampled_from(list(Arch))), draw(st.sampled_from(list(Precision)))
    size = None
    if len(shape) == 2 and draw(st.booleans()):
        size = (draw(st.integers(1, shape[0])), draw(st.integers(1, shape[1])))
        tile = min(-(-n // m) for n, m in zip(shape, size, strict=True))
        one = draw(stencils(min(3, tile), shape))
    else:
        one = draw(stencils(3, shape))
    return kernels.plan_stencil(one, shape, size=size, arch=arch, precision=precision)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_stencil(star((1, 0, 1), own=1.0, boundary="fixed"), (3, 2, 5)),
    kernels.plan_stencil(star((2, 0, 1), before=-1.0), (6, 1, 4), arch="wse2"),
    kernels.plan_stencil(star((1, 0, 1), own=1.0), (3, 2, 5), precision="f16", arch="wse2"),
    kernels.plan_stencil(star((0, 1), before=-1.0), (2, 3), precision="f16-f32"),
    kernels.plan_stencil(
        star((2, 1), own=1.0, boundary="fixed", source=Source((2, 3), np.ones(2, np.float32))),
        (7, 8),
        size=(3, 3),
    ),
)


@examples(16, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_steps_on_rectangles_are_within_their_bound(
    plan: StencilPlan, steps: int, seed: int
) -> None:
    check_steps(plan, steps, seed)


def test_f32_sums_of_f16_keep_what_f16_loses() -> None:
    cool = Stencil({(0, 1): 2.0**-12, (0, -1): 2.0**-12}, own=1.0)
    values = np.ones((1, 3), np.float16)
    assert (kernels.stencil(cool, values, 4, precision="f16").values == 1).all()
    assert (kernels.stencil(cool, values, 4).values > 1).all()


def test_a_bound_is_infinite_where_f16_may_overflow() -> None:
    doubled = Stencil({(0, 0): 2.0})
    plan = kernels.plan_stencil(doubled, (1, 1), precision="f16-f32")
    values = np.full((1, 1), 20_000, np.float16)
    assert np.isfinite(plan.error_bound(values, 1)).all()
    assert np.isinf(plan.error_bound(values, 2)).all()
    assert np.isinf(plan.error_bound(values, 2000)).all()


def difference_from_plan(plan: StencilPlan, steps: int) -> float:
    """Of predicted cycles, as a share of the measured ones."""
    values = np.ones(plan.shape[: plan.stencil.num_dims], plan.precision.given)
    return plan.cycles(steps) / plan.run(values, steps).cycles - 1


def test_steps_on_more_pes_take_what_their_plan_says() -> None:
    heat = Stencil({(-1, 0): 0.2, (1, 0): 0.2, (0, -1): 0.2, (0, 1): 0.2})
    plan = kernels.plan_stencil(heat, (6, 7), arch="wse2")
    assert abs(difference_from_plan(plan, 40)) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("precision", list(Precision))
def test_steps_of_tiles_take_what_their_plan_says(precision: Precision, arch: Arch) -> None:
    source = Source((20, 20), np.ones(3, np.float32))
    one = star((2, 1), own=0.5, before=-0.1, boundary="fixed", source=source)
    plan = kernels.plan_stencil(one, (50, 44), size=(9, 8), arch=arch, precision=precision)
    assert abs(difference_from_plan(plan, 30)) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "num_added"), [((0, 0), 99), ((5, 11), 20), ((6, 6), 2), ((1, 10), 0)]
)
def test_a_source_takes_cycles_where_and_as_long_as_it_adds(
    cell: tuple[int, int], num_added: int
) -> None:
    heat = Stencil({(-1, 0): 0.2, (0, 1): 0.2}, source=Source(cell, np.ones(num_added, np.float32)))
    plan = kernels.plan_stencil(heat, (12, 12))
    assert abs(difference_from_plan(plan, 40)) <= 0.02


@pytest.mark.slow
def test_columns_that_start_later_end_later() -> None:
    heat = Stencil({(-1, 0): 0.2, (0, 1): 0.2})
    assert abs(difference_from_plan(kernels.plan_stencil(heat, (2, 80)), 20)) <= 0.02


REACHES = ((1, 1, 1), (2, 3, 0), (4, 4, 4), (0, 0, 2), (0, 7, 1))
# Any two of precision, reach, boundary and generation meet in a case.
STARS = covering((list(Precision), REACHES, BOUNDARIES, list(Arch)), 2, lambda _: True)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "reach", "boundary", "arch"), STARS)
def test_steps_of_any_star_take_what_their_plan_says(
    precision: Precision, reach: tuple[int, int, int], boundary: str, arch: Arch
) -> None:
    shape = (17, 19, 12)
    source, scale = Source((8, 9, 6), np.ones(5, np.float32)), np.ones(shape, np.float32)
    one = star(reach, own=0.5, before=-0.1, scale=scale, source=source, boundary=boundary)
    plan = kernels.plan_stencil(one, shape, arch=arch, precision=precision)
    assert abs(difference_from_plan(plan, 30)) <= 0.1


@pytest.mark.slow
@settings(max_examples=100)
@given(plans(), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_steps_of_any_star_are_within_their_bound(plan: StencilPlan, steps: int, seed: int) -> None:
    check_steps(plan, steps, seed)


@pytest.mark.parametrize(
    ("offsets", "others", "words"),
    [
        ({(0, 0), (0, 0, 1)}, {}, "offsets have [2, 3] numbers"),
        ({(1, 1)}, {}, "offset (1, 1) leaves two axes"),
        ({(0, 0)}, {"own": np.inf}, "own is inf; a finite number"),
        ({(0, 0)}, {"boundary": "periodic"}, "boundary is 'periodic'"),
    ],
)
def test_a_description_says_what_is_no_star(
    offsets: set[tuple[int, ...]], others: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        Stencil(dict.fromkeys(offsets, 1.0), **others)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("others", "precision", "words"),
    [
        ({}, "f16", "1 of coefficients have sizes such as 1e-05; float16 holds 6.1e-05 to 65504"),
        ({}, "f16-f32", "1 of coefficients"),
        ({"own": 1e5}, "f16", "1 of own and before have sizes such as 100000"),
        ({}, "f64", "precision is 'f64'"),
    ],
)
def test_numbers_that_f16_cannot_hold_are_refused(
    others: dict[str, Any], precision: str, words: str
) -> None:
    one = Stencil({(0, 0): 1.0, (0, 1): 1e-5 if not others else 1.0}, **others)
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_stencil(one, (2, 2), precision=precision)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("stencil", "shape", "words"),
    [
        (star((1, 1)), (3, 3, 3), "offsets have 2 numbers"),
        (star((8, 1)), (9, 9), "the star reaches 8 PEs far"),
        (star((1, 1, 1)), (2, 2, 4000), "a column of 4000 cells of f32 takes"),
        (star((1, 1)), (2000, 2), "2000 rows and 2 columns of PEs"),
        (star((1, 1), scale=np.ones((2, 2), np.float32)), (3, 3), "scale has the shape (2, 2)"),
        (star((1, 1), source=Source((3, 0), np.ones(1, np.float32))), (3, 3), "is at (3, 0)"),
    ],
)
def test_a_plan_says_what_does_not_fit(
    stencil: Stencil, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_stencil(stencil, shape)
    assert words in str(raised.value)
