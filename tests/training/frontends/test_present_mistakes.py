"""What a script of the present style may get wrong, and what it is told."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import cstorch, tensorboard
from openwafer.training.frontends.present.data import compute_num_steps
from openwafer.training.frontends.present.executor import DataExecutor
from tests.training.frontends.present_scripts import (
    PresentScript,
    adamw,
    begin,
    executor_of,
    loader_of,
)
from tests.training.frontends.session_scripts import BATCHES


def compiled() -> nn.Module:
    begin()
    return cstorch.compile(nn.Linear(2, 2))


def iterated(**options: Any) -> list[Any]:
    compiled()
    return list(executor_of([torch.ones(2)], **options))


def no_model() -> None:
    begin()
    list(executor_of([1]))


def two_loops() -> None:
    compiled()
    for _ in executor_of([torch.ones(2)]):
        list(executor_of([torch.ones(2)]))


def compiled_inside() -> None:
    compiled()
    for _ in executor_of([torch.ones(2)]):
        cstorch.compile(nn.Linear(3, 3))


def backend_inside() -> None:
    compiled()
    for _ in executor_of([torch.ones(2)]):
        begin()


def other_backend() -> None:
    begin()
    cstorch.backend("CSX")


def model_unused() -> None:
    first = compiled()
    cstorch.compile(nn.Linear(2, 3))
    for batch in executor_of([torch.ones(2)]):
        cstorch.trace(first)(batch)


def no_length() -> None:
    compiled()
    DataExecutor(cstorch.utils.data.DataLoader(lambda: iter([])))


def no_batches() -> None:
    compiled()
    list(executor_of([], num_steps=2))


def optimizer_of_torch() -> None:
    script = PresentScript(adamw)
    script.optimizer = torch.optim.AdamW(script.model.parameters())
    script.train(0, 1)


def compile_any(model: Any) -> nn.Module:
    return cstorch.compile(model)


def load_any(input_fn: Any) -> cstorch.utils.data.DataLoader:
    return cstorch.utils.data.DataLoader(input_fn)


def plain_loader() -> None:
    begin()
    DataExecutor(BATCHES)  # type: ignore[arg-type]


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "kind": (lambda: cstorch.backend("TPU"), "cstorch.backend knows no type 'TPU'"),
    "other": (other_backend, "has a backend of CPU, and is asked for one of CSX"),
    "compile-only": (
        lambda: cstorch.backend("CSX", compile_only=True),
        "asked for compile_only=True\n(.|\n)*nothing is compiled before the first step",
    ),
    "option": (lambda: cstorch.backend("CPU", fold="x"), "is asked for fold='x'(.|\n)*folder"),
    "no-backend": (cstorch.current_executor, "cstorch.current_executor is called, and there is no"),
    "optimizer-without": (
        lambda: cstorch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1),
        "cstorch.optim.SGD is called, and there is no backend",
    ),
    "no-module": (lambda: compile_any(partial(max)), "takes a torch.nn.Module, and got a part"),
    "no-model": (no_model, "an executor is iterated over, and no model is compiled"),
    "two-loops": (two_loops, "iterated over inside the loop of another one"),
    "compiled-inside": (compiled_inside, "another Linear while an executor is iterated over"),
    "backend-inside": (backend_inside, "changes the backend while an executor of it is iterated"),
    "unused": (model_unused, "the step has not called the Linear that was compiled last"),
    "no-length": (no_length, "num_steps is left out, and the list_iterator that input_fn returned"),
    "no-batches": (no_batches, "the loader has given no batch for step 1 of 2"),
    "steps": (lambda: iterated(num_steps=0), "num_steps is 0"),
    "checkpoints": (lambda: iterated(checkpoint_steps=-1), "checkpoint_steps is -1"),
    "listeners": (lambda: iterated(listeners=[1]), r"is asked for listeners=\[1\]"),
    "loader": (plain_loader, "takes a cstorch.utils.data.DataLoader, and got a list"),
    "input": (lambda: load_any([]), "a function that returns a loader, and"),
    "batches": (
        lambda: list(load_any(lambda: 7)),
        "input_fn returns batches to iterate over, and got a int",
    ),
    "state": (lambda: loader_of([]).state_dict(), "the state of a list is asked for, and it has"),
    "torch": (optimizer_of_torch, "AdamW is to take a step on the compiled model, and is no opt"),
    "computed": (lambda: compute_num_steps([1]), "no number of steps follows from num_steps=None"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_script_is_told(mistake: str) -> None:
    script, words = MISTAKES[mistake]
    with pytest.raises(OpenwaferError, match=words):
        script()


def test_a_mistake_in_a_loop_ends_it() -> None:
    with pytest.raises(OpenwaferError, match="is no optimizer of"):
        optimizer_of_torch()
    PresentScript(adamw).train(0, 1)


@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="TensorBoard is installed")
def test_a_writer_without_tensorboard_is_told() -> None:
    with pytest.raises(OpenwaferError) as told:
        tensorboard.SummaryWriter()
    assert told.value.diagnostics[0].help == (
        "install it: pip install tensorboard, or leave a SummaryWriter out"
    )
