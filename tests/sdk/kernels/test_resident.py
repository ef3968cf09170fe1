"""Layers whose activations stay on the wafer between passes, against numpy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels.precision import bound_of_products
from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_cycles import on_rectangle, product_cycles
from openwafer.sdk.kernels.resident_plan import Norm, Weights, plan_resident, with_precision
from tests.tables import case

TOKENS, FIRST, HIDDEN, LAST = 6, 9, 13, 5


@pytest.fixture(scope="module", params=["wse3", case("wse2", by_default=False)])
def wafer(request: pytest.FixtureRequest) -> Iterator[Resident]:
    options: dict[str, Any] = {"arch": request.param, "num_ports": 2}
    norm = Norm(HIDDEN, 1e-5, has_mean=True)
    plan = plan_resident((3, 2), TOKENS, HIDDEN, norm=norm, **options)
    resident = Resident(plan, has_account=True)
    yield resident
    resident.close()


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(found: NDArray[Any], a: NDArray[Any], b: NDArray[Any], more: Any = 0.0) -> None:
    """See that a product was made up to the bound of all its roundings."""
    exact = a.astype(np.float64) @ b.astype(np.float64) + more
    roundings = a.shape[1] + 8
    bound = bound_of_products(a, b, roundings, roundings, np.dtype(np.float32))
    assert (np.abs(found - exact) <= bound + 2.0**-20 * np.abs(more)).all()


def test_what_is_held_comes_back(wafer: Resident) -> None:
    for features in (1, FIRST, HIDDEN):
        x = normal(features, TOKENS)
        held = wafer.hold(x)
        assert (wafer.values(held) == x).all()
        wafer.release(held)


def test_all_passes_of_a_layer_with_bias_are_numpys_up_to_their_bounds(wafer: Resident) -> None:
    w, bias, x, dy = normal(HIDDEN, FIRST), normal(HIDDEN), normal(FIRST, TOKENS), normal(13, 6)
    weights = Weights.of(w, wafer.plan, has_bias=True)
    held = [wafer.hold(one) for one in (x, dy)]
    y = wafer.forward(weights, weights.values(w.ravel(), bias), held[0])
    check(wafer.values(y), w, x, bias[:, None])
    dx = wafer.delta(weights, w.ravel(), held[1])
    check(wafer.values(dx), w.T, dy)
    gradients = wafer.gradient(weights, *held)
    check(gradients[~weights.is_of_bias].reshape(w.shape), dy, x.T)
    check(gradients[weights.is_of_bias][:, None], dy, np.ones((TOKENS, 1)))
    for one in (*held, y, dx):
        wafer.release(one)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_products_of_f16_are_those_of_rounded_factors_up_to_their_bounds(arch: str) -> None:
    plan = with_precision(plan_resident((3, 2), TOKENS, HIDDEN, arch=arch), "f16-f32")
    wafer = Resident(plan)
    w, bias, x, dy = normal(HIDDEN, FIRST), normal(HIDDEN), normal(FIRST, TOKENS), normal(13, 6)
    weights = Weights.of(w, plan, has_bias=True)
    held = [wafer.hold(one) for one in (x, dy)]
    y = wafer.forward(weights, weights.values(w.ravel(), bias), held[0])
    w, bias, x, dy = (one.astype(np.float16).astype(np.float32) for one in (w, bias, x, dy))
    check(wafer.values(y), w, x, bias[:, None])
    check(wafer.values(wafer.delta(weights, w.ravel(), held[1])), w.T, dy)
    gradients = wafer.gradient(weights, *held)
    check(gradients[~weights.is_of_bias].reshape(w.shape), dy, x.T)
    check(gradients[weights.is_of_bias][:, None], dy, np.ones((TOKENS, 1)))
    wafer.close()


def sparse_layer() -> tuple[NDArray[np.float32], scipy.sparse.csr_array]:
    """Weights whose smaller values are zeros, and what is left of them."""
    w = normal(LAST, HIDDEN, seed=1) * (normal(LAST, HIDDEN, seed=3) > 0.8)
    return w, scipy.sparse.csr_array(w)


def test_activations_stay_between_layers_of_different_shapes(wafer: Resident) -> None:
    w1, (w2, sparse), x = normal(HIDDEN, FIRST), sparse_layer(), normal(FIRST, TOKENS, seed=2)
    layers = [Weights.of(w, wafer.plan, has_bias=False) for w in (w1, sparse)]
    hidden = wafer.relu(wafer.forward(layers[0], w1.ravel(), wafer.hold(x)))
    on_host = wafer.values(hidden)
    assert (on_host == np.maximum(on_host, 0)).all()
    check(wafer.values(wafer.forward(layers[1], sparse.data, hidden)), w2, on_host)
    dy = wafer.hold(normal(LAST, TOKENS, seed=4))
    back = wafer.relu_delta(hidden, wafer.delta(layers[1], sparse.data, dy))
    assert ((wafer.values(back) == 0) | (on_host > 0)).all()
    entries = sparse.tocoo()
    found = np.zeros(w2.shape, np.float32)
    found[entries.row, entries.col] = wafer.gradient(layers[1], hidden, dy)
    check(np.where(w2 != 0, found, wafer.values(dy) @ on_host.T), wafer.values(dy), on_host.T)


def test_layers_beside_products_are_numpys(wafer: Resident) -> None:
    x, dy, scales = normal(HIDDEN, TOKENS), normal(HIDDEN, TOKENS, seed=1), normal(2, HIDDEN)
    held, given = wafer.hold(x), wafer.hold(dy)
    share = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.allclose(wafer.values(wafer.silu(held)), x * share, atol=1e-5)
    slope = share * (1 + x * (1 - share))
    assert np.allclose(wafer.values(wafer.silu_delta(held, given)), dy * slope, atol=1e-5)
    assert (wafer.values(wafer.multiply(held, given)) == x * dy).all()
    made = wafer.normalise(held, scales)
    normed = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    assert np.allclose(wafer.values(made.y), normed * scales[:1].T + scales[1:].T, atol=1e-5)
    dx, gradients = wafer.normalise_delta(made, given)
    assert np.allclose(gradients, [(dy * normed).sum(1), dy.sum(1)], atol=1e-5)
    of_scaled = dy * scales[:1].T
    part = of_scaled - of_scaled.mean(0) - normed * (of_scaled * normed).mean(0)
    assert np.allclose(wafer.values(dx), part / np.sqrt(x.var(0) + 1e-5), atol=1e-5)


def test_what_is_no_number_goes_through_activation_functions(wafer: Resident) -> None:
    great, ones = np.full((1, TOKENS), 3e38, np.float32), np.ones((1, TOKENS), np.float32)
    held, nothing, dy = (wafer.hold(one) for one in (great, 0 * ones, ones))
    nan = wafer.multiply(wafer.add(held, held), nothing)
    for function in (wafer.relu, wafer.silu, wafer.gelu):
        assert np.isnan(wafer.values(function(nan))).all()
    assert (wafer.values(wafer.relu_delta(nan, dy)) == 1).all()


def test_only_weights_that_are_stored_enter_and_take_cycles(wafer: Resident) -> None:
    w, x = normal(HIDDEN, HIDDEN), wafer.hold(normal(HIDDEN, TOKENS))
    sparse = scipy.sparse.csr_array(w * (normal(HIDDEN, HIDDEN, seed=1) > 1))
    first = len(wafer.passes)
    for kept, data in ((w, w.ravel()), (sparse, sparse.data)):
        wafer.forward(Weights.of(kept, wafer.plan, has_bias=False), data, x)
    dense, few = wafer.passes[first:]
    assert few.entered - 2 * sparse.nnz < dense.entered - 2 * w.size
    assert few.cycles < dense.cycles / 1.5
    assert (dense.multiply_adds, few.multiply_adds) == (w.size * TOKENS, sparse.nnz * TOKENS)


def test_passes_over_weights_take_what_is_predicted(wafer: Resident) -> None:
    w, first = normal(HIDDEN, HIDDEN), len(wafer.passes)
    weights, held = Weights.of(w, wafer.plan, has_bias=False), wafer.hold(normal(HIDDEN, TOKENS))
    wafer.forward(weights, w.ravel(), held)
    wafer.delta(weights, w.ravel(), held)
    wafer.gradient(weights, held, held)
    for one in wafer.passes[first:]:
        assert one.cycles == pytest.approx(product_cycles(weights, wafer.plan)[one.name], rel=0.1)
        assert one.busy_cycles is not None
        assert 0.5 * one.cycles < one.busy_cycles < one.cycles


def test_an_account_tells_work_from_waiting_and_has_no_command(wafer: Resident) -> None:
    held = wafer.hold(normal(HIDDEN, TOKENS))
    wafer.add(held, held)
    wafer.normalise(held, normal(2, HIDDEN))
    local, norm = wafer.passes[-2:]
    assert local.busy_cycles == pytest.approx(local.cycles, abs=15)
    assert norm.busy_cycles is not None
    assert norm.busy_cycles < norm.cycles - 16, "a norm waits for sums of other rows"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("rows", "ports"), [(8, 1), (4, 4)])
def test_predictions_hold_for_other_rectangles_ports_and_zeros(
    arch: str, zeros: float, rows: int, ports: int
) -> None:
    resident = Resident(plan_resident((rows, 1), 8, 64, arch=arch, num_ports=ports))
    kept = normal(48, 64) * (np.random.default_rng(2).random((48, 64)) >= zeros)
    matrix, plan = scipy.sparse.csr_array(kept.astype(np.float32)), resident.plan
    weights, x, dy = Weights.of(matrix, plan, has_bias=False), normal(64, 8), normal(48, 8)
    held = [resident.hold(one) for one in (x, dy)]
    resident.forward(weights, matrix.data, held[0])
    resident.delta(weights, matrix.data, held[1])
    resident.gradient(weights, *held)
    for one in resident.passes:
        assert one.cycles == pytest.approx(product_cycles(weights, plan)[one.name], rel=0.15)
    resident.close()


def test_more_tokens_of_a_pe_make_better_use_of_it() -> None:
    weights = Weights.of(normal(64, 64), plan_resident((4, 2), 8, 64), has_bias=True)
    passes = [(weights, "forward", 2), (weights, "gradient", 1)]
    few, many = on_rectangle(passes, (8, 10), Arch.WSE2, (4, 64))
    assert few.multiply_adds == 3 * 64 * 65 * 40
    assert many.multiply_adds / many.cycles > 4 * few.multiply_adds / few.cycles


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_tokens": 7}, "7 tokens on 2 columns of PEs"),
        ({"size": (3, 2000)}, "3 rows and 2000 columns of PEs"),
        ({"size": (9, 2), "num_ports": 1}, r"1 ports for 9 rows of PEs[^$]*give 2 to 9 ports"),
        ({"most_features": 3000, "num_tokens": 64}, r"32 tokens of 1000 features take 128,000"),
    ],
)
def test_what_has_no_room_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"size": (3, 2), "num_tokens": 6, "most_features": 13}
    with pytest.raises(OpenwaferError, match=words):
        plan_resident(**usual | given)


def test_sums_of_f16_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="streamed weights are summed in f32"):
        with_precision(plan_resident((3, 2), 6, 13), "f16")


def test_an_arena_that_is_full_says_what_is_kept(wafer: Resident) -> None:
    with pytest.raises(OpenwaferError, match=r"5000 features of 6 tokens take 26,\d\d\d bytes"):
        [wafer.reserve(5000) for _ in range(2)]


@pytest.mark.slow
def test_room_that_is_not_in_one_piece_is_said_so() -> None:
    resident = Resident(plan_resident((1, 1), 4, 100))
    pieces = [resident.reserve(100) for _ in range((resident.plan.num_panels - 1) // 100)]
    for piece in pieces[::2]:
        resident.release(piece)
    with pytest.raises(OpenwaferError, match=r"150 features[^$]*leaves 1,600 in one piece"):
        resident.reserve(150)
    resident.close()
