"""An ablation trains a config and its variants, goes on where it ended, and refuses mistakes."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.training.session.config_sections import EvaluateConfig
from openwafer.training.sweep import Ablation, Axis, Grid, Sweep, SweptRun, Variant
from openwafer.training.sweep.ablation import (
    parse_axis,
    read_variants,
    require_variants,
    variants_of,
)
from tests.training.session.tiny_runs import GPT, make_tiny_data, tiny_config

RATE = "optimizer.learning_rate"
NARROW = Variant("narrow", {"model.mlp_size": "8"}, "variants.yaml")
ONE = Ablation(variants_of(Axis(RATE, ("1e-2",))), (3,))
HEAD = "format: openwafer-variants\nversion: 1\n"


class PoweredOffError(Exception):
    """In place of a kill."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablated")
    run = tiny_config(make_tiny_data(folder), folder / "runs")
    run = replace(run, steps=1, model=GPT, name=None, evaluate=EvaluateConfig(every=9, batches=1))
    (folder / "base.yaml").write_text(to_yaml(run))
    return folder / "base.yaml"


def begun(sweep: Sweep) -> list[str]:
    names: list[str] = []
    assert sweep.run(lambda progress: names.append(progress.name), lambda run: None) == ""
    return names


def power_off(run: SweptRun) -> None:
    raise PoweredOffError(run.name)


@pytest.mark.slow
def test_a_killed_ablation_repeats_nothing_and_takes_more_variants_and_seeds(
    config: Path, tmp_path: Path
) -> None:
    with pytest.raises(PoweredOffError, match="baseline,seed=3"):
        Sweep(config, (), ONE, tmp_path).run(lambda progress: None, power_off)
    assert begun(Sweep(config, (), ONE, tmp_path)) == [f"{RATE}=1e-2,seed=3"]
    larger = Ablation((*ONE.variants, NARROW), (3, 4))
    names = ["baseline,seed=4", f"{RATE}=1e-2,seed=4"]
    narrow = [f"model.mlp_size=8,seed={seed}" for seed in (3, 4)]
    assert begun(Sweep(config, (), larger, tmp_path)) == [*names, *narrow]


def test_another_baseline_is_refused_also_by_a_key_that_variants_change(
    config: Path, tmp_path: Path
) -> None:
    with pytest.raises(PoweredOffError, match="baseline"):
        Sweep(config, (), ONE, tmp_path).run(lambda progress: None, power_off)
    with pytest.raises(OpenwaferError, match=r"learning_rate is 0\.\d+ in the sweep in .* 0\.5 "):
        Sweep(config, (f"{RATE}=0.5",), ONE, tmp_path)
    with pytest.raises(OpenwaferError, match=r"is over one change at a time .*, and batch\.size"):
        Sweep(config, (), Grid((Axis("batch.size", ("2",)),), (3,)), tmp_path)


def test_a_file_names_variants_whose_values_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "variants.yaml"
    changes = "{optimizer.learning_rate: 1e-3, schedule.name: linear, batch: {size: 2}}"
    path.write_text(f"{HEAD}variants:\n  - name: slow\n    set: {changes}\n")
    (found,) = read_variants(path)
    values = ("0.001", "linear", "{size: 2}")
    keys = ("optimizer.learning_rate", "schedule.name", "batch")
    assert found == Variant("slow", dict(zip(keys, values, strict=True)), str(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version: 1\nvariants: []", r"missing here: format"),
        (f"{HEAD}variants: []", r"expected a variant or more, found none"),
        (f"{HEAD}variants: [{{name: a, set: {{}}}}]", r"expected keys with values, found none"),
        (f"{HEAD}variants: [{{name: '', set: {{a: 1}}}}]", r"expected a name, found none"),
        (f"{HEAD}variants: [{{name: a, ste: {{a: 1}}}}]", r"(?s)yaml:3:22.*did you mean 'set'"),
        (f"{HEAD}variants: [{{name: a, set: {{seed: 1}}}}]", r"(?s)sweep-grid.*variant 'a' of "),
        (f"{HEAD}variants: []".replace("1", "7"), r"version: 7; this program reads .* 1"),
    ],
)
def test_mistakes_of_a_file_are_told_with_their_remedy(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "variants.yaml"
    path.write_text(text)
    with pytest.raises(OpenwaferError, match=told):
        read_variants(path)


@pytest.mark.parametrize(
    ("variants", "told"),
    [
        ((), r"option-value.*nothing to compare(.|\n)*give --vary KEY=V"),
        ((NARROW, replace(NARROW, origin="b.yaml")), r"'narrow' stands twice: in variants.yaml, a"),
        ((replace(NARROW, name="baseline"),), r"ablation-name.*'baseline' stands twice"),
        ((NARROW, replace(NARROW, name="thin")), r"'thin' of .*mlp_size=8, and so does 'narrow'"),
        (
            variants_of(parse_axis("steps=1")),
            r"ablation-same.*sets steps=1, and so does 'baseline'",
        ),
        (variants_of(parse_axis("stpes=1")), r"did you mean 'steps'"),
        (variants_of(parse_axis("batch.size=2")), r"held-out tokens: 24 in .*, and 72 in the base"),
        (
            variants_of(parse_axis("data.validation_share=0.2")),
            r"validation_share: 0\.2 in .* 0\.3",
        ),
    ],
)
def test_variants_that_cannot_be_compared_are_refused(
    config: Path, variants: tuple[Variant, ...], told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        require_variants(config, (), Ablation(variants, (3,)))
