"""The optimizer section of a config as groups of torch optimizers."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session.config_sections import GroupConfig, OptimizerConfig
from openwafer.training.session.optimizers import build_optimizers, freeze, tables_of


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)


def described(model: nn.Module, config: OptimizerConfig) -> dict[str, tuple[Any, ...]]:
    """For each parameter its optimizer, learning rate and weight decay."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return {
        name_of[parameter]: (type(optimizer).__name__, group["lr"], group["weight_decay"])
        for optimizer in build_optimizers(model, config)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_matrices_decay_and_vectors_do_not() -> None:
    found = described(Small(), OptimizerConfig(learning_rate=1.0, weight_decay=0.5))
    decays = {name: decay for name, (_, _, decay) in found.items()}
    assert decays == dict.fromkeys(("embed.weight", "first.weight", "head.weight"), 0.5) | (
        dict.fromkeys(("first.bias", "norm.weight", "norm.bias"), 0.0)
    )


def test_a_group_has_settings_of_its_own() -> None:
    group = GroupConfig(("first.*",), learning_rate=9.0, weight_decay=0.25)
    found = described(Small(), OptimizerConfig(learning_rate=1.0, groups=(group,)))
    assert found["first.bias"] == ("AdamW", 9.0, 0.25)
    assert found["norm.bias"] == ("AdamW", 1.0, 0.0)


def test_the_last_group_that_matches_wins() -> None:
    groups = (GroupConfig(("first.*",), learning_rate=9.0), GroupConfig(("*.bias",), name="sgd"))
    found = described(Small(), OptimizerConfig(groups=groups))
    assert found["first.bias"] == ("SGD", 9.0, 0.0)


def test_options_reach_the_optimizer_but_not_another_one() -> None:
    config = OptimizerConfig(
        options={"betas": [0.5, 0.75]},
        groups=(GroupConfig(("head.*",), name="sgd", options={"momentum": 0.5}),),
    )
    adamw, sgd = build_optimizers(Small(), config)
    assert adamw.param_groups[0]["betas"] == [0.5, 0.75]
    assert sgd.param_groups[0]["momentum"] == 0.5
    assert "betas" not in sgd.param_groups[0]


def test_muon_takes_the_hidden_matrices_alone() -> None:
    found = described(Small(), OptimizerConfig(name="muon", options={"momentum": 0.5}))
    by_muon = [name for name, (optimizer, _, _) in found.items() if optimizer == "Muon"]
    assert by_muon == ["first.weight"]


def test_frozen_parameters_are_in_no_group() -> None:
    model = Small()
    freeze(model, ("embed.*", "head.*"))
    assert set(described(model, OptimizerConfig())) == {
        *("first.weight", "first.bias"),
        *("norm.weight", "norm.bias"),
    }


def test_groups_keep_the_order_of_the_parameters() -> None:
    [optimizer] = build_optimizers(Small(), OptimizerConfig())
    shapes = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    assert shapes == [[(7, 4), (4, 4), (7, 4)], [(4,), (4,), (4,)]]


def test_a_pattern_that_matches_nothing_names_the_closest_parameter() -> None:
    config = OptimizerConfig(groups=(GroupConfig(("frist.weight",)),))
    with pytest.raises(OpenwaferError, match=r"'frist.weight' of optimizer.groups matches none "):
        build_optimizers(Small(), config)


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"all 6 parameters are frozen"):
        freeze(Small(), ("*",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.9}, "adamw has no option 'beta'"),
        ({"eps": -1.0}, "adamw refuses its options: Invalid epsilon value: -1.0"),
    ],
)
def test_a_wrong_option_is_told_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        build_optimizers(Small(), OptimizerConfig(options=options))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "adamm"}, "name: no optimizer is called 'adamm'"),
        ({"learning_rate": -1.0}, r"learning_rate: expected at least 0, found -1\.0"),
        ({"weight_decay": float("nan")}, "weight_decay: expected at least 0, found nan"),
        ({"options": {"lr": 1.0}}, "options: 'lr' has a key of its own"),
    ],
)
def test_a_wrong_value_is_told_at_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**values)


def test_embeddings_are_told_from_matrices_when_tied() -> None:
    model = Small()
    model.head.weight = model.embed.weight
    optimizers = build_optimizers(model, OptimizerConfig(name="muon"))
    assert [len(o.param_groups) for o in optimizers] == [2, 1]
    assert all(torch.numel(p) == 16 for p in optimizers[1].param_groups[0]["params"])


def test_as_many_positions_as_features_make_no_head_of_a_hidden_map() -> None:
    sizes = {
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "attention_types": [[["global"], 1]],
    }
    config = transformers.GPTNeoConfig(max_position_embeddings=16, vocab_size=40, **sizes)
    model = transformers.GPTNeoForCausalLM(config)
    tables = tables_of(model)
    found = {name for name, weight in model.named_parameters() if id(weight) in tables}
    assert found == {"transformer.wte.weight", "transformer.wpe.weight"}
