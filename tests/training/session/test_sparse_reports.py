"""What a sparse run records of its masks, and what its plan and its report say of them."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from openwafer.training.methods.mask_updates import picture_of
from openwafer.training.metrics import RunRecord, load_run
from openwafer.training.metrics.report import render_report
from openwafer.training.session import RunConfig, Session, show_plan
from openwafer.training.sparsity.masks.one_shot import random_mask
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.sparsity.pattern import Pattern
from tests.training.session.tiny_runs import GPT, TinyData, quiet, saved_arrays, tiny_config

RIGL = SparsityGroup(0.75, AlgorithmName.RIGL, update=EverySteps(2), drop_fraction=0.5)
STEPS = 6


def config_of(data: TinyData, folder: Path) -> RunConfig:
    return replace(tiny_config(data, folder), steps=STEPS, model=GPT, sparsity=RIGL)


@pytest.fixture(scope="module")
def arrays_and_run(data: TinyData, tmp_path_factory: Any) -> tuple[Any, RunRecord]:
    """A run that stopped behind its third step and went on."""
    config = config_of(data, tmp_path_factory.mktemp("runs"))
    Session(replace(config, steps=3), console=quiet()).train()
    result = Session(config, console=quiet()).resume()
    return saved_arrays(result), load_run(config.path)


def test_each_update_of_each_mask_is_recorded_once(arrays_and_run: tuple[Any, RunRecord]) -> None:
    _, run = arrays_and_run
    assert run.plan.sparse is not None
    assert run.masks is not None
    names = [weight.name for weight in run.plan.sparse.weights]
    found = [(row.step, row.weight) for row in run.masks.rows]
    assert found == [(step, name) for step in (1, 3, 5) for name in names]
    assert all(row.dropped == row.grown and 0 <= row.churn <= 0.5 for row in run.masks.rows)
    assert any(row.dropped for row in run.masks.rows)


def test_pictures_show_the_masks_that_the_run_ends_with(
    arrays_and_run: tuple[Any, RunRecord],
) -> None:
    _, run = arrays_and_run
    assert len(run.mask_pictures) == 4
    for picture in run.mask_pictures:
        assert (picture.step, picture.kept) == (STEPS, picture.rows * picture.columns // 4)
        # Of weights so small a cell is an element.
        assert sum(map(sum, picture.cells)) == picture.kept
        assert len(picture.cells) == picture.rows


def test_cells_of_a_large_mask_hold_their_share() -> None:
    mask = random_mask((100, 130), 0.8, "fc", 1)
    mask[:, 7] = mask[3] = False
    picture = picture_of("fc", 0, Pattern.from_mask(mask))
    rows = [[row for row in range(100) if row * 48 // 100 == cell] for cell in range(48)]
    columns = [[c for c in range(130) if c * 48 // 130 == cell] for cell in range(48)]
    part = mask[rows[5]][:, columns[11]].double()
    assert picture.cells[5][11] == pytest.approx(float(part.mean()), abs=1e-4)
    assert picture.empty_rows >= 1
    assert picture.empty_columns >= 1


def test_the_plan_counts_the_bytes_that_the_store_keeps(
    arrays_and_run: tuple[Any, RunRecord],
) -> None:
    arrays, run = arrays_and_run
    sparse = run.plan.sparse
    assert sparse is not None
    names = {weight.name for weight in sparse.weights}
    kept = [array for name, array in arrays.items() if name.rpartition("/")[2] in names]
    patterns = [array for name, array in arrays.items() if name.endswith("weight_pattern")]
    assert sparse.store_bytes == sum(array.nbytes for array in (*kept, *patterns))
    assert sparse.dense_store_bytes == 3 * 4 * sparse.elements


def test_a_step_is_compared_with_the_plan_of_the_dense_run(
    data: TinyData, tmp_path: Path, arrays_and_run: tuple[Any, RunRecord]
) -> None:
    config = config_of(data, tmp_path)
    sparse = arrays_and_run[1].plan.sparse
    dense = Session(replace(config, sparsity=None), console=quiet()).plan()
    assert sparse is not None
    assert sparse.parameters == dense.parameters
    assert sparse.dense_step_bytes == dense.step_bytes


def test_bytes_of_patterns_count_as_no_parameters(arrays_and_run: tuple[Any, RunRecord]) -> None:
    plan = arrays_and_run[1].plan
    assert plan.sparse is not None
    dropped = sum(weight.elements - weight.capacity for weight in plan.sparse.weights)
    assert plan.parameters == plan.sparse.parameters - dropped
    assert sum(layer.parameters for layer in plan.layers) == plan.parameters


def test_the_printed_plan_says_what_is_sparse(arrays_and_run: tuple[Any, RunRecord]) -> None:
    shown = io.StringIO()
    show_plan(arrays_and_run[1].plan, Console(file=shown))
    pattern = (
        r"sparse +\d+\.\d% of [\d.K]+ dense parameters, in 14 weights, of which 25.0% are kept"
    )
    assert re.search(pattern, shown.getvalue())
    assert re.search(
        r"sparse store +\S+ KiB of values, states and pattern .* dense", shown.getvalue()
    )


def test_the_report_shows_costs_weights_churn_and_masks(
    arrays_and_run: tuple[Any, RunRecord],
) -> None:
    page = render_report(arrays_and_run[1])
    assert "<h2>Sparse weights</h2>" in page
    assert page.count("<td>layers.0.mlp.up.weight</td><td>24 by 16</td><td>25.0%</td>") == 1
    for name in ("churn", "masks"):
        figure = re.search(rf'<figure id="{name}">.*?</figure>', page, re.DOTALL)
        assert figure is not None
        assert figure[0].count("<svg") == 2
    assert not re.search(r"(?:fill|stroke): #", page.split("</style>")[1])
