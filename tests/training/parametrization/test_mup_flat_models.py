"""What a matrix is to muP follows from what becomes of its product, wherever its module stands."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.mup import Parametrization, mup_of
from openwafer.training.models import UserModule
from openwafer.training.parametrization.mup import Mup
from openwafer.training.parametrization.roles import Kind
from openwafer.training.session import RunConfig
from tests.training.parametrization.wide_models import DATA, VOCABULARY

HIDDEN = ("query", "key", "value", "out", "up", "down")


def mup_of_flat(**arguments: object) -> Mup:
    model = UserModule(
        "tests.training.parametrization.flat_models:FlatTransformer", {"size": 32, **arguments}
    )
    mup, base = Parametrization.MUP, {"size": 8, "num_heads": 1}
    config = RunConfig(steps=3, data=DATA, model=model, parametrization=mup, base=base)
    return mup_of(config, config.base, VOCABULARY)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_head_of_a_flat_model_is_told_from_its_projections(is_tied: bool) -> None:
    """By the paper's table: four times as wide, the head's output is a fourth."""
    found = mup_of_flat(is_tied=is_tied)
    matrices = {name: role for name, role in found.roles.items() if len(role.shape) == 2}
    heads = {} if is_tied else {"head.weight": Kind.OUTPUT}
    hidden = {f"{name}.weight": Kind.HIDDEN for name in HIDDEN}
    kinds = {name: role.kind for name, role in matrices.items()}
    assert kinds == {"table.weight": Kind.INPUT, **hidden, **heads}
    assert found.multipliers == {"head": 1 / 4}


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ({"key_heads": 1}, "'key.weight' maps a width to attention of a size that no width in"),
        ({"mlp_size": 16}, "'up.weight' maps a width to a size that no width in base decides on"),
    ],
)
def test_sizes_that_do_not_follow_the_width_are_refused(fixed: dict[str, int], told: str) -> None:
    with pytest.raises(OpenwaferError) as refused:
        mup_of_flat(**fixed)
    assert told in str(refused.value)
