"""Products whose weights stream in through ports, against numpy, and the published speed-up."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import StreamedPlan, Streaming
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.sparse_tiles import in_turns
from openwafer.sdk.kernels.weight_streams import WeightStreams
from tests.examples import examples
from tests.tables import checkerboard, some

PATTERNS = ("even", "power law", "empty rows and columns", "a dense row", "empty")
SHARES = (0.0, 0.5, 0.9, 0.99, 0.999)
ARCHS, PRECISIONS = ("wse2", "wse3"), ("f32", "f16-f32")


def weights(pattern: str, shape: tuple[int, int], share: float, seed: int) -> Any:
    """Numbers of many sizes, `share` of them zeros where the pattern says no more."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) >= share
    if pattern == "power law":
        chances = 1 / (1 + rng.permutation(shape[1]))
        mask &= rng.random(shape) < chances
    if pattern == "empty rows and columns":
        mask[::3], mask[:, ::4] = False, False
    if pattern == "a dense row":
        mask[shape[0] // 2] = True
    if pattern == "empty":
        mask[:] = False
    values = rng.normal(size=shape) * 2.0 ** rng.integers(-6, 4, shape)
    return scipy.sparse.csr_array((values * mask).astype(np.float32))


def check_forward(plan: StreamedPlan, seed: int) -> None:
    """Multiply, looking for mistakes, and compare with numpy."""
    x = np.random.default_rng(seed).normal(size=plan.shape[1:]).astype(plan.precision.given)
    exact = plan.streams.matrix.astype(np.float64) @ x.astype(np.float64)
    error = np.abs(plan.forward(x, check=True).values - exact)
    assert (error <= plan.error_bound(x)).all()


PLANS = (
    kernels.plan_streamed(
        weights("a dense row", (6, 21), 0.9, 3), 40, (6, 2), arch="wse2", precision="f16-f32",
        streaming=Streaming(3, 1, is_sorted=False),
    ),
    kernels.plan_streamed(
        weights("even", (7, 19), 0.5, 1), 9, (3, 2), arch="wse2", streaming=Streaming(1, 1)
    ),
    kernels.plan_streamed(
        weights("power law", (9, 30), 0.2, 2), 33, (4, 1), precision="f16-f32",
        streaming=Streaming(2, 2),
    ),
    kernels.plan_streamed(weights("empty rows and columns", (11, 8), 0.1, 4), 5, (1, 1)),
    kernels.plan_streamed(weights("empty", (3, 4), 0, 5), 3, (2, 1)),
)  # fmt: skip


@examples(8, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_streamed_product_is_numpys_up_to_its_bound(plan: StreamedPlan, seed: int) -> None:
    check_forward(plan, seed)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_any_weights_on_any_rectangle_are_multiplied_up_to_the_bound(data: st.DataObject) -> None:
    rows, columns, fold = data.draw(st.tuples(*3 * [st.integers(1, 4)]))
    streaming = Streaming(fold, data.draw(st.integers(1, rows)), data.draw(st.booleans()))
    shape = data.draw(st.tuples(*2 * [st.integers(1, 50)]))
    share, pattern = data.draw(st.sampled_from(SHARES)), data.draw(st.sampled_from(PATTERNS))
    w = weights(pattern, shape, share, data.draw(st.integers(0, 2**32 - 1)))
    arch, precision = data.draw(st.sampled_from(ARCHS)), data.draw(st.sampled_from(PRECISIONS))
    tokens, size = data.draw(st.integers(1, 80)), (rows * fold, columns)
    plan = kernels.plan_streamed(
        w, tokens, size, arch=arch, precision=precision, streaming=streaming
    )
    check_forward(plan, data.draw(st.integers(0, 2**32 - 1)))


def plan_of(share: float, size: tuple[int, int], *of: Any, features: int = 128) -> StreamedPlan:
    """16 outputs, all weights of them where `share` is 0."""
    arch, precision, streaming, tokens = of
    w = weights("even", (16, features), share, 3)
    given = w if share else np.ones((16, features), np.float32)
    options = {"arch": arch, "precision": precision, "streaming": streaming}
    return kernels.plan_streamed(given, tokens, size, **options)


def cycles_of(plan: StreamedPlan) -> int:
    return plan.forward(np.ones(plan.shape[1:], plan.precision.given)).cycles


@pytest.mark.parametrize(
    ("arch", "precision", "fold", "num_ports"),
    some(
        [("wse2", "f32", 1, 2), ("wse2", "f16-f32", 2, 1), ("wse3", "f32", 1, 1)],
        ("wse2", "f16-f32", 2, 1),
    ),
)
def test_a_streamed_product_takes_what_its_plan_says(
    arch: str, precision: str, fold: int, num_ports: int
) -> None:
    plan = plan_of(0.8, (2, 1), arch, precision, Streaming(fold, num_ports), 64)
    assert abs(cycles_of(plan) - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize("num_ports", some([1, 2, 8], 1))
def test_rows_whose_weights_differ_in_number_wait_for_each_other_as_planned(num_ports: int) -> None:
    w = weights("even", (48, 64), 0.9, 3)
    plan = kernels.plan_streamed(w, 32, (8, 1), streaming=Streaming(1, num_ports))
    assert cycles_of(plan) == pytest.approx(plan.cycles, rel=0.06)


# Of one token and few weights a product's cycles are those of tasks' instructions.
@pytest.mark.parametrize(
    ("size", "arch", "precision"),
    some(
        [((1, 1), "wse2", "f32"), ((3, 1), "wse3", "f16-f32"), ((3, 2), "wse2", "f32")],
        ((3, 1), "wse3", "f16-f32"),
    ),
)
def test_a_product_of_few_weights_takes_what_its_tasks_do(
    size: tuple[int, int], arch: str, precision: str
) -> None:
    w = np.ones((2 * size[0], 2 * size[0]), np.float32)
    plan = kernels.plan_streamed(w, size[1], size, arch=arch, precision=precision)
    assert cycles_of(plan) == pytest.approx(plan.cycles, rel=0.01)


@pytest.mark.parametrize(
    ("arch", "way"),
    checkerboard(ARCHS, {"sorted": (1, True), "as given": (1, False), "2": (2, False)}, one_in=4),
)
def test_zeros_speed_a_product_up_as_published(arch: str, way: tuple[int, bool]) -> None:
    fold, is_sorted = way
    of = (2, 1), arch, "f16-f32", Streaming(fold, 2 // fold, is_sorted=is_sorted), 64
    whole = cycles_of(plan_of(0, *of))
    plan = plan_of(0.9, *of)
    assert whole / cycles_of(plan) == pytest.approx(plan.published_speedup, rel=0.1)


@pytest.mark.parametrize("arch", some(ARCHS, "wse3"))
def test_nine_tenths_of_zeros_make_a_product_nine_times_as_fast(arch: str) -> None:
    of = (1, 1), arch, "f16-f32", Streaming(), 32
    whole, sparse = (cycles_of(plan_of(share, *of, features=480)) for share in (0, 0.9))
    assert whole >= 9 * sparse


def test_weights_wait_for_a_slow_port() -> None:
    plan = plan_of(0.5, (2, 1), "wse2", "f32", Streaming(1, 1), 4)
    assert plan.stream_cycles < plan.compute_cycles
    assert kernels.plan_streamed(np.ones((4, 4), np.float32), 4, (1, 1)).stream_cycles == 36


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "f16"}, "precision is 'f16'; streamed weights are summed in f32"),
        ({"num_tokens": 0}, "0 tokens"),
        ({"streaming": Streaming(fold=5)}, "a fold of 5 on 4 rows of PEs"),
        ({"streaming": Streaming(fold=3)}, "a fold of 3 on 4 rows of PEs"),
        ({"streaming": Streaming(2, 3)}, "3 ports for 4 rows of PEs in folds of 2"),
        ({"num_tokens": 20000}, "4 features and 4 outputs of 2500 tokens in f32 takes"),
        ({"w": np.ones(3, np.float32)}, "A is ndarray"),
        ({"size": (0, 2)}, "0 rows and 2 columns of PEs"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    usual = {"w": np.ones((4, 4), np.float32), "num_tokens": 4, "size": (4, 2)}
    with pytest.raises(OpenwaferError) as caught:
        kernels.plan_streamed(**usual | given)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_activations_of_another_shape_or_type_are_refused() -> None:
    w = np.ones((4, 4), np.float32)
    with pytest.raises(OpenwaferError, match=r"X has the shape \(4,\)"):
        kernels.streamed_gemm(w, np.ones(4, np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match=r"X has the shape \(4, 3\); the plan is for \(4, 2\)"):
        kernels.plan_streamed(w, 2, (1, 1)).forward(np.ones((4, 3), np.float32))
    with pytest.raises(OpenwaferError, match="1 of the 8 values of X are infinite"):
        kernels.streamed_gemm(w, np.array([[np.inf, 1]] + 3 * [[1, 1]], np.float32), (1, 1))


@pytest.mark.parametrize(("rows", "band"), [(1, 1), (5, 1), (7, 3), (8, 8), (9, 4)])
def test_wavelets_of_a_port_are_counted_as_they_enter(rows: int, band: int) -> None:
    drawn = np.random.default_rng(rows)
    w = scipy.sparse.csr_array((drawn.random((11, 30)) > 0.6).astype(np.float32))
    streams = WeightStreams(w, in_turns(30, rows), in_turns(11, rows), rows, band, Precision.F32)
    for of_weight in (1, 2):
        entering = streams.of_ports(np.zeros((w.nnz, of_weight), np.uint32))
        assert streams.num_wavelets(of_weight) == max(len(words) for words, _ in entering)
