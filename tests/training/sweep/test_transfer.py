"""The config of a wide model: the best settings of a narrow one, under muP."""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataSource, SourceKind
from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import OptimizerConfig, TokensConfig
from openwafer.training.sweep.transfer import transferred

NARROW = RunConfig(
    steps=10,
    data=TokensConfig(DataSource(SourceKind.STANDARD_LIBRARY)),
    model=GptConfig(hidden_size=16, num_layers=2, num_heads=2, mlp_size=48, context_length=512),
    optimizer=OptimizerConfig("adamw", learning_rate=0.02),
)
WIDTHS = {"hidden_size": 64, "num_heads": 8, "mlp_size": 192}


def test_widths_of_the_narrow_model_become_the_base() -> None:
    wide = transferred(NARROW, WIDTHS)
    assert wide.parametrization is Parametrization.MUP
    assert wide.base == {"hidden_size": 16, "num_heads": 2, "mlp_size": 48}
    model = replace(GptConfig(), hidden_size=64, num_heads=8, mlp_size=192, num_layers=2)
    assert wide.model == replace(model, context_length=512)
    assert (wide.optimizer, wide.name) == (NARROW.optimizer, None)


def test_a_base_that_was_swept_with_stays() -> None:
    once = transferred(NARROW, WIDTHS)
    twice = transferred(once, {name: 2 * width for name, width in WIDTHS.items()})
    assert twice.base == once.base
    assert isinstance(twice.model, GptConfig)
    assert twice.model.hidden_size == 128


def test_a_width_that_the_base_leaves_out_is_refused() -> None:
    swept = replace(NARROW, parametrization=Parametrization.MUP, base={"hidden_size": 16})
    with pytest.raises(
        OpenwaferError, match=r"base has hidden_size, and num_heads, mlp_size is to"
    ):
        transferred(swept, WIDTHS)


@pytest.mark.parametrize(
    ("config", "widths", "told"),
    [
        (replace(NARROW, optimizer=OptimizerConfig("adafactor")), WIDTHS, "is not that of another"),
        (NARROW, {"hidden_size": 64}, r"sweep-transfer.*muP does not know how to scale this run"),
        (NARROW, {"hidden": 64}, r"width-field.*no field 'hidden'"),
    ],
)
def test_rates_do_not_transfer_where_mup_has_no_rule(
    config: RunConfig, widths: dict[str, int], told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        transferred(config, widths)
