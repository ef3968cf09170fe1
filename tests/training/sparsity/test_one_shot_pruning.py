"""Wanda and SparseGPT against plain statements on small matrices."""

import pytest
import torch
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.masks.one_shot import (
    add_products,
    add_squares,
    magnitude_mask,
    sparsegpt,
    wanda_mask,
)
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, Structure, Unstructured
from tests.tables import case

ROWS, COLUMNS = 6, 300


def linear_map(columns: int = COLUMNS) -> Tensor:
    return torch.randn(ROWS, columns, generator=torch.Generator().manual_seed(2))


def inputs(columns: int = COLUMNS) -> Tensor:
    """Correlated inputs [batch, tokens, columns] of features of different sizes."""
    generator = torch.Generator().manual_seed(3)
    mixed = 3 * torch.randn(columns, columns, generator=generator) / columns**0.5
    mixed += torch.eye(columns)
    scale = torch.rand(columns, generator=generator) * 3
    seen: Tensor = torch.randn(4, 200, columns, generator=generator) @ mixed * scale
    return seen


def products_of(seen: Tensor) -> Tensor:
    found = torch.zeros(seen.shape[-1], seen.shape[-1], dtype=torch.float64)
    for batch in seen:
        add_products(found, batch)
    return found


def squares_of(seen: Tensor) -> Tensor:
    found = torch.zeros(seen.shape[-1], dtype=torch.float64)
    for batch in seen:
        add_squares(found, batch)
    return found


def output_error(weights: Tensor, pruned: Tensor, seen: Tensor) -> float:
    return float((seen @ (weights - pruned).T).square().sum())


def plain_order(weights: Tensor, seen: Tensor, row: int) -> list[int]:
    """Columns by falling |weight| times the norm of all inputs of the column."""
    flat = seen.reshape(-1, seen.shape[-1]).double()
    score = [
        abs(float(weights[row, c])) * float(flat[:, c].norm()) for c in range(weights.shape[1])
    ]
    return sorted(range(weights.shape[1]), key=lambda c: (-score[c], c))


def test_wanda_keeps_the_largest_products_of_weight_and_norm_in_each_row() -> None:
    weights, seen = linear_map(), inputs()
    mask = wanda_mask(weights, squares_of(seen), 0.7, "fc")
    for row in range(ROWS):
        kept = sorted(plain_order(weights, seen, row)[:90])
        assert mask[row].nonzero().flatten().tolist() == kept


def test_rows_that_wanda_cannot_cut_even_keep_the_exact_number_together() -> None:
    weights, seen = linear_map(10), inputs(10)
    mask = wanda_mask(weights, squares_of(seen), 0.75, "fc")
    assert mask.sum(dim=1).tolist() == [2, 3, 2, 3, 2, 3]


def test_wanda_keeps_two_of_every_four() -> None:
    weights, seen = linear_map(), inputs()
    mask = wanda_mask(weights, squares_of(seen), 0.5, "fc", NOfM(2, 4))
    order = plain_order(weights, seen, 1)
    for start in range(0, COLUMNS, 4):
        kept = sorted([c for c in order if start <= c < start + 4][:2])
        assert [start + c for c in mask[1, start : start + 4].nonzero().flatten().tolist()] == kept


def plain_sparsegpt(
    weights: Tensor, seen: Tensor, sparsity: float, together: int, per_row: int
) -> Tensor:
    """Each column by the optimal-brain-surgeon step with an explicit inverse of what is left.

    Where `per_row` is not 0, each row keeps so many of the columns that are chosen `together`.
    """
    flat = seen.reshape(-1, seen.shape[-1]).double()
    hessian = flat.T @ flat
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian)).double()
    left = weights.double().clone()
    rows, columns = left.shape
    inverses = [torch.linalg.inv(hessian[c:, c:]) for c in range(columns)]
    kept: set[tuple[int, int]] = set()
    for c in range(columns):
        if c % together == 0:
            block = range(c, min(c + together, columns))
            cells = [(r, b) for r in range(rows) for b in block]
            score = {(r, b): float(left[r, b] ** 2 / inverses[b][0, 0]) for r, b in cells}
            order = sorted(cells, key=lambda cell: (-score[cell], cell))
            for r in range(rows) if per_row else ():
                kept.update([cell for cell in order if cell[0] == r][:per_row])
            if not per_row:
                total = round((1 - sparsity) * 100) * rows * (block[-1] + 1) // 100
                kept |= set(order[: total - len(kept)])
        for r in range(rows):
            if (r, c) not in kept:
                left[r, c:] -= left[r, c] / inverses[c][0, 0] * inverses[c][0]
    return left


@pytest.mark.parametrize(
    ("structure", "sparsity", "together", "per_row"),
    [
        case(Unstructured(), 0.7, 128, 0, by_default=False),
        case(NOfM(2, 4), 0.5, 4, 2, by_default=True),
        case(NOfM(1, 3), 2 / 3, 3, 1, by_default=False),
    ],
)
def test_sparsegpt_is_one_surgeon_step_a_column(
    structure: Structure, sparsity: float, together: int, per_row: int
) -> None:
    weights, seen = linear_map(), inputs()
    pruned = sparsegpt(weights, products_of(seen), sparsity, "fc", structure)
    plain = plain_sparsegpt(weights, seen, sparsity, together, per_row)
    assert torch.equal(pruned.mask, plain.abs() > 1e-9)
    assert torch.allclose(pruned.weights, plain.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(pruned.weights != 0, pruned.mask)


@pytest.mark.parametrize("columns", [100, 128, 300])
def test_sparsegpt_keeps_the_exact_number(columns: int) -> None:
    pruned = sparsegpt(linear_map(columns), products_of(inputs(columns)), 0.73, "fc")
    assert int(pruned.mask.sum()) == 27 * ROWS * columns // 100


def test_the_more_is_known_of_inputs_the_less_the_output_changes() -> None:
    weights, seen = linear_map(), inputs()
    by_size = weights * magnitude_mask(weights, 0.5, "fc")
    by_wanda = weights * wanda_mask(weights, squares_of(seen), 0.5, "fc")
    by_surgeon = sparsegpt(weights, products_of(seen), 0.5, "fc").weights
    errors = [output_error(weights, pruned, seen) for pruned in (by_size, by_wanda, by_surgeon)]
    assert errors[0] > 1.5 * errors[1]
    assert errors[1] > 1.5 * errors[2]


def test_features_that_are_always_zero_lose_their_weights() -> None:
    seen = inputs()
    seen[..., 7] = 0
    pruned = sparsegpt(linear_map(), products_of(seen), 0.5, "fc")
    assert not pruned.mask[:, 7].any()
    assert bool(pruned.weights.isfinite().all())


def test_inputs_of_few_directions_do_not_break_the_factorization() -> None:
    seen = inputs()[:1, :3]
    pruned = sparsegpt(linear_map().to(torch.bfloat16), products_of(seen), 0.5, "fc")
    assert pruned.weights.dtype == torch.bfloat16
    assert bool(pruned.weights.isfinite().all())


@pytest.mark.parametrize(
    ("statistics", "structure", "message"),
    [
        (torch.ones(4).diag(), Blocks(2, 2), "fc cannot be pruned in blocks of 2x2 by its inputs"),
        (torch.ones(4).diag(), NOfM(2, 3), "its 4 columns are no multiple of 3"),
        (torch.ones(5).diag(), Unstructured(), "its inputs have 5 features and it 4"),
        (torch.full((4, 4), torch.nan), Unstructured(), "inputs that were seen are not finite"),
        (torch.zeros(4, 4), Unstructured(), "all inputs that were seen are 0"),
    ],
)
def test_a_map_that_its_inputs_cannot_prune_is_refused(
    statistics: Tensor, structure: Structure, message: str
) -> None:
    with pytest.raises(OpenwaferError, match=message):
        sparsegpt(torch.ones(4, 4), statistics, 0.5, "fc", structure)


def test_weights_without_an_order_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="4 of 4 weights of fc are not finite"):
        wanda_mask(torch.full((2, 2), torch.nan), torch.ones(2), 0.5, "fc")
