"""A run that is to go on with other sparse weights than it has is refused, and stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Session
from openwafer.training.sparsity.masks import Cycling, EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup, WrittenSparsity
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

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


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_goes_on_with_the_sparsity_that_it_has(
    data: TinyData, tmp_path: Path, change: str
) -> None:
    before, after, match = CHANGES[change]
    config = replace(tiny_config(data, tmp_path), model=GPT, steps=2)
    Session(replace(config, sparsity=before), console=quiet()).train()
    left = contents_of(tmp_path)
    with pytest.raises(OpenwaferError, match=match):
        Session(replace(config, sparsity=after, steps=6), console=quiet()).resume()
    assert contents_of(tmp_path) == left


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
