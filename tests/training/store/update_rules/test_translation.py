"""What cannot be translated is refused with the remedy."""

import re

import pytest
import torch
from torch.optim import LBFGS, Adam, AdamW, Optimizer, RMSprop

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.update_rules import OPTIMIZERS, Lion, build_optimizer, from_torch
from openwafer.training.store.update_rules.own_step import OwnStepRule
from openwafer.training.store.update_rules.translation import AdamRule, SgdRule
from tests.training.store.update_rules.side_by_side import build_rule


class Tuned(AdamW):
    """A subclass, which might do anything."""


def _weights() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2, 3))]


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (LBFGS(_weights()), "torch.optim.lbfgs.LBFGS cannot update streamed weights"),
        (LBFGS(_weights()), "help: use an optimizer whose step treats each parameter by itself"),
        (RMSprop(_weights(), capturable=True), "RMSprop has capturable=True in parameter group 0"),
        (Tuned(_weights(), capturable=True), "Tuned has capturable=True in parameter group 0"),
        (Adam(_weights(), capturable=True), "Adam has capturable=True in parameter group 0"),
        (Adam(_weights(), capturable=True), "help: it serves CUDA graphs, and the store updates"),
        (AdamW(_weights(), differentiable=True), "AdamW has differentiable=True in parameter"),
    ],
)
def test_an_optimizer_the_store_cannot_follow_is_refused(optimizer: Optimizer, text: str) -> None:
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        from_torch(optimizer)


def test_rules_come_in_the_order_of_the_groups() -> None:
    groups = [{"params": _weights(), "lr": lr} for lr in (0.5, 0.25)]
    rules = from_torch(torch.optim.SGD(groups))
    assert [rule.lr for rule in rules if isinstance(rule, SgdRule)] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("options", "forms"),
    [
        ({}, (True, None)),
        ({"fused": False}, (False, None)),
        ({"foreach": True}, (None, True)),
        ({"foreach": False}, (None, False)),
    ],
)
def test_a_config_gets_the_fused_kernel_unless_it_says_otherwise(
    options: dict[str, object], forms: tuple[bool | None, bool | None]
) -> None:
    rule = build_rule("adamw", options)
    assert isinstance(rule, AdamRule)
    assert (rule.fused, rule.foreach) == forms


def test_options_of_a_config_reach_the_rule() -> None:
    rule = build_rule("adamw", {"lr": 0.125, "betas": [0.5, 0.75], "weight_decay": 0.25})
    expected = from_torch(
        AdamW(_weights(), lr=0.125, betas=(0.5, 0.75), weight_decay=0.25, fused=True)
    )
    assert (rule,) == expected


def test_a_subclass_never_takes_the_rule_of_its_parent() -> None:
    (rule,) = from_torch(Tuned(_weights()))
    assert isinstance(rule, OwnStepRule)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_builds_an_optimizer_that_can_be_read(name: str) -> None:
    optimizer = build_optimizer(name, _weights(), {"lr": 0.5})
    assert len(from_torch(optimizer)) == 1


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("adanw", {}, "no optimizer is called 'adanw'\n  = help: did you mean 'adamw'?"),
        ("adamw", {"weightdecay": 1}, "adamw has no option 'weightdecay'\n  = help: did you mean"),
        ("adamw", {"lr": -1.0}, "adamw refuses its options: Invalid learning rate: -1.0"),
        ("sgd", {"nesterov": True}, "sgd refuses its options: Nesterov momentum requires"),
        ("lion", {"betas": [0.9, 1.5]}, "lion got lr=0.0001, betas=(0.9, 1.5), weight_decay=0.0"),
        ("muon", {"adjust_lr_fn": "x"}, "Adjust learning rate function x is not supported"),
        ("adamw", {"lr": "fast"}, "adamw refuses its options: '<=' not supported between"),
        ("adam", {"betas": 0.9}, "adam takes 2 values for 'betas', found 0.9\n  = note: betas: 0"),
        ("adam", {"betas": [0.9]}, "adam takes 2 values for 'betas', found 1 value\n"),
        ("rprop", {"etas": [1, 2, 3]}, "rprop takes 2 values for 'etas', found 3 values\n"),
        ("lamb", {"eps": -1.0}, "lamb got lr=0.001, betas=(0.9, 0.999), eps=-1.0"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    name: str, options: dict[str, object], text: str
) -> None:
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        build_optimizer(name, _weights(), options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_sgd_of_half_precision_weights_is_refused(dtype: torch.dtype) -> None:
    rule = build_rule("sgd", {"momentum": 0.9})
    text = f"torch's fused SGD does not update weights of {dtype} on the CPU\n  = note: a bug"
    with pytest.raises(OpenwaferError, match=re.escape(text)):
        rule.states((3,), dtype)


def test_lion_takes_a_closure() -> None:
    assert Lion(_weights()).step(lambda: 2.5) == 2.5
