"""A run that measures how to multiply keeps what it has found, so that it can be repeated."""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from rich.console import Console

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import RunConfig, Session, load_config, show_plan
from openwafer.training.session.config_sections import BatchConfig, Precision, ScheduleConfig
from openwafer.training.sparsity.choice import WrittenProducts
from openwafer.training.sparsity.products import Products
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    quiet,
    saved_arrays,
    tiny_config,
    train_quietly,
)

STEPS = 5
Whole: TypeAlias = Callable[[str], Mapping[str, torch.Tensor]]
WAYS: dict[str, WrittenProducts] = {
    "skips zeros": {"*": 1},
    "is dense": {"*": None},
    "is mixed": {"layers.0.mlp.*": None, "*": 1},
}


def config_of(data: TinyData, folder: Path, products: WrittenProducts) -> RunConfig:
    return replace(
        tiny_config(data, folder),
        steps=STEPS,
        model=GPT,
        sparsity=0.75,
        sparse_products=products,
        batch=BatchConfig(size=6, sequence_length=12),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )


def kept_products(config: RunConfig) -> WrittenProducts:
    return load_config(config.path / "config.yaml").sparse_products


def test_a_run_writes_into_its_config_what_it_has_measured(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, Products.MEASURED)
    train_quietly(replace(config, steps=1))
    kept = kept_products(config)
    assert isinstance(kept, dict)
    assert all(tokens in (None, 64, 256) for tokens in kept.values())
    # Layers of one shape are measured once.
    assert {name.split(".")[1] for name in kept} == {"*"}
    log = (config.path / "log.txt").read_text()
    told = re.findall(r"products with layers.\*.* (measured to be|skip zeros from) ", log)
    assert len(told) == len(kept)


@pytest.fixture(scope="module")
def whole(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What an unbroken run leaves that multiplies in one of the ways, trained once."""

    @cache
    def train(way: str) -> Mapping[str, torch.Tensor]:
        config = config_of(data, tmp_path_factory.mktemp("whole"), WAYS[way])
        return saved_arrays(train_quietly(config))

    return train


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_multiplies_as_it_began_whatever_a_measurement_would_say(
    data: TinyData, tmp_path: Path, whole: Whole, way: str
) -> None:
    config = config_of(data, tmp_path, WAYS[way])
    train_quietly(replace(config, steps=2))
    broken = Session(replace(config, sparse_products=Products.MEASURED), console=quiet()).resume()
    assert differing(whole(way), saved_arrays(broken)) == []
    assert kept_products(config) == WAYS[way]


@pytest.mark.slow
def test_the_ways_to_multiply_differ_in_bits(whole: Whole) -> None:
    assert all(differing(*two) for two in combinations(map(whole, WAYS), 2))


@pytest.mark.slow
def test_the_config_of_a_measured_run_repeats_it_bit_for_bit(
    data: TinyData, tmp_path: Path
) -> None:
    first = train_quietly(config_of(data, tmp_path, Products.MEASURED))
    again = load_config(first.folder / "config.yaml", ("name=again",))
    assert differing(saved_arrays(first), saved_arrays(train_quietly(again))) == []


@pytest.mark.slow
def test_a_run_that_was_not_measured_measures_when_it_goes_on_so(
    data: TinyData, tmp_path: Path
) -> None:
    config = config_of(data, tmp_path, Products.DENSE)
    train_quietly(replace(config, steps=2))
    Session(replace(config, sparse_products=Products.MEASURED), console=quiet()).resume()
    assert isinstance(kept_products(config), dict)


@pytest.mark.slow
def test_what_is_always_dense_is_not_measured(data: TinyData, tmp_path: Path) -> None:
    config = replace(
        config_of(data, tmp_path, Products.MEASURED), steps=1, precision=Precision.BF16
    )
    train_quietly(config)
    kept = kept_products(config)
    assert isinstance(kept, dict)
    assert {*kept.values()} == {None}
    assert (
        "products with layers.*.mlp.up.weight are dense\n" in (config.path / "log.txt").read_text()
    )


def test_the_plan_says_which_weights_are_multiplied_how(data: TinyData, tmp_path: Path) -> None:
    plan = Session(config_of(data, tmp_path, WAYS["is mixed"]), console=quiet()).plan()
    shown = io.StringIO()
    show_plan(plan, Console(file=shown))
    assert re.search(
        r"products +of 11 weights skip zeros from 1 tokens on; of 3 weights dense", shown.getvalue()
    )
    assert plan.sparse is not None
    dense = {w.name for w in plan.sparse.weights if w.skips_from_tokens is None}
    assert dense == {f"layers.0.mlp.{part}.weight" for part in ("up", "gate", "down")}


@pytest.mark.parametrize(
    ("products", "told"),
    [
        ({"*.nlp.*": 64, "*": None}, "'\\*.nlp.\\*' is the first that matches for none of 14"),
        ({"*.mlp.*": 64}, "nothing matches the sparse weight 'layers.0.attention"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    data: TinyData, tmp_path: Path, products: WrittenProducts, told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        Session(config_of(data, tmp_path, products), console=quiet()).plan()
