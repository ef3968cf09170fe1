"""A streamed run of a deep model has the bits of a plain loop that multiplies branches.

The loop is CompleteP as the paper has it, arXiv 2505.01618 with alpha 1: a multiplier behind
each branch, and in it Adam's rates as they are, m times SGD's, and eps / m. The run has
no multiplier; what ends a branch is smaller instead.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import GptConfig, build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import ScheduleConfig
from tests.tables import case
from tests.training.parametrization.test_mup_runs import (
    DECAY,
    RATE,
    config_of,
    plain_mup_loop,
)
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    make_tiny_data,
    quiet,
    saved_parameters,
    train_quietly,
)

# Four times as deep as the base: every factor is exact.
GPT = GptConfig(
    hidden_size=16, num_layers=4, num_heads=2, mlp_size=32, context_length=16, dropout=0.1
)
DEEPER = 4
ENDS = ("attention.output", "mlp.down")
RATES = {"adamw": 1, "sgd": DEEPER}
OPTIONS = {"adamw": {"eps": 1e-8 / DEEPER}, "sgd": {}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def deep_config(data: TinyData, folder: Path, optimizer: str) -> RunConfig:
    # A norm of all gradients is not the same where weights are smaller in place of a multiplier.
    config = replace(config_of(data, folder, GPT, optimizer), clip_norm=None)
    return replace(config, base={"num_layers": 1})


def quarter(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return output / DEEPER


def deep_model(config: RunConfig, vocab_size: int) -> Any:
    """The model with multipliers, and what ends a branch drawn as in a model of one layer."""
    model: Any = build(with_vocab_size(config.model, vocab_size), config.seed)
    for layer in model.layers:
        for end in ENDS:
            module = layer.get_submodule(end)
            module.weight.data *= DEEPER**0.5
            module.register_forward_hook(quarter)
    return model


def deep_group(name: str, parameter: nn.Parameter, optimizer: str) -> dict[str, Any]:
    is_inside = name.startswith("layers.")
    factor = RATES[optimizer] if is_inside else 1
    decay = DECAY / factor if parameter.ndim > 1 else 0.0
    options = OPTIONS[optimizer] if is_inside else {}
    return {"params": [parameter], "lr": RATE * factor, "weight_decay": decay, **options}


# Rates of both are those of the table, see test_depth_factors.
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", case("sgd", by_default=False)])
def test_a_deep_run_equals_the_loop_that_multiplies_branches(
    data: TinyData, tmp_path: Path, optimizer: str
) -> None:
    config = deep_config(data, tmp_path, optimizer)
    expected = dict(plain_mup_loop(config, deep_model, deep_group))
    for name in expected:
        if any(end in name for end in ENDS):
            expected[name] = expected[name] / DEEPER
    assert differing(saved_parameters(train_quietly(config)), expected) == []


@pytest.mark.slow
def test_a_run_of_the_base_depth_is_the_one_without_mup(data: TinyData, tmp_path: Path) -> None:
    config = deep_config(data, tmp_path, "adamw")
    same = replace(config, base={"num_layers": 4, "hidden_size": 16, "mlp_size": 32})
    standard = replace(config, name="standard", parametrization=Parametrization.STANDARD, base={})
    found, expected = (saved_parameters(train_quietly(each)) for each in (same, standard))
    assert differing(found, expected) == []


@pytest.mark.slow
def test_a_deep_run_goes_on_to_the_same_bits(data: TinyData, tmp_path: Path) -> None:
    schedule = ScheduleConfig("constant", {"num_warm_up_steps": 1})
    config = replace(deep_config(data, tmp_path, "adamw"), schedule=schedule)
    whole = saved_parameters(train_quietly(replace(config, name="whole")))
    train_quietly(replace(config, steps=2))
    resumed = Session(config.path, [f"steps={config.steps}"], console=quiet()).resume()
    assert differing(saved_parameters(resumed), whole) == []
