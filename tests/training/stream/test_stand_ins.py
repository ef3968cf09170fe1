"""Something else has the calls of a module for a while."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from openwafer.training.stream.execute.attachment import Function, stand_in


def twice(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    return 2 * function(*args, **kwargs)


def test_a_stand_in_has_every_call_of_the_module() -> None:
    module = nn.Identity()
    stand_in(module, "forward", module.forward, twice)
    assert module(torch.tensor(3)) == 6


def test_a_stand_in_has_the_signature_of_what_it_stands_for() -> None:
    module = nn.Identity()
    before = inspect.signature(module.forward)
    stand_in(module, "forward", module.forward, twice)
    assert inspect.signature(module.forward) == before


def test_a_module_gets_the_function_of_its_class_back() -> None:
    module = nn.Identity()
    stand_in(module, "forward", module.forward, twice)()
    assert "forward" not in vars(module)


def test_a_module_gets_a_function_of_its_own_back() -> None:
    module = nn.Identity()
    own = vars(module)["forward"] = torch.neg
    stand_in(module, "forward", own, twice)()
    assert vars(module)["forward"] is own
