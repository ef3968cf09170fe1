"""A run that is to go on with other sparse weights than it has is refused, and stays as it was."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import RunConfig, Session
from openwafer.training.sparsity.masks.schedules import Cycling, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup, WrittenSparsity
from tests.tables import case
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    quiet,
    tiny_config,
    train_quietly,
)

Begun: TypeAlias = Callable[[WrittenSparsity | None], RunConfig]
FIRST = "layers.0.attention.query.weight"
FALLING = SparsityGroup(Cycling((0.75, 0.5)), AlgorithmName.GMP, update=EverySteps(4))
CHANGES: dict[str, tuple[WrittenSparsity | None, WrittenSparsity | None, str]] = {
    "sparser": (0.5, 0.75, f"'{FIRST}' keeps at most 128 of 256 weights .* at most 64 of 256"),
    "less sparse": (0.75, 0.5, f"{FIRST} keeps 128 weights from step 0 on, and 64 have room"),
    "dense": (0.5, None, f"'{FIRST}' keeps at most 128 of 256 weights .* and is dense as"),
    "sparse": (None, 0.5, f"'{FIRST}' is dense as the run was begun, and keeps at most 128"),
    "fewer are sparse": (
        0.5,
        SparsityGroup(0.5, param_filter="*.mlp.*"),
        f"'{FIRST}' keeps at most 128 of 256 weights .* and is dense as",
    ),
    "in groups": (
        0.5,
        SparsityGroup(structure="2:4"),
        f"the masks of '{FIRST}' are unstructured, and the run is to go on with 2:4",
    ),
    "longer, so that it falls": (
        FALLING,
        FALLING,
        f"{FIRST} keeps 128 weights from step 4 on, and 64 have room",
    ),
}


@pytest.fixture(scope="module")
def begun(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """Begins a run with a sparsity, once: what is refused leaves it as it was."""

    @cache
    def begin(sparsity: WrittenSparsity | None) -> RunConfig:
        config = tiny_config(data, tmp_path_factory.mktemp("begun"))
        config = replace(config, model=GPT, steps=2, sparsity=sparsity)
        train_quietly(config)
        return config

    return begin


@pytest.mark.parametrize("change", [case(c, by_default=i == 0) for i, c in enumerate(CHANGES)])
def test_a_run_goes_on_with_the_sparsity_that_it_has(begun: Begun, change: str) -> None:
    before, after, match = CHANGES[change]
    config = begun(before)
    left = contents_of(config.path)
    with pytest.raises(OpenwaferError, match=match):
        Session(replace(config, sparsity=after, steps=6), console=quiet()).resume()
    assert contents_of(config.path) == left


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
