"""Planning runs the model's code and hooks, and a user's program does not see that."""

import logging
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from tests.tables import checkerboard
from tests.training.stream import layers_with_outside_state as outside
from tests.training.stream.layers_with_state import Bare, Chain
from tests.training.stream.own_loops import PLAINLY, WAYS, differing, run_loop


class Plain(Bare):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.exp(self.inner(x_BTD))


def chain() -> Chain:
    return Chain(Plain(), Plain(), Plain())


@pytest.fixture(autouse=True)
def from_zero() -> Iterator[None]:
    outside.start_anew()
    yield
    outside.start_anew()


def planned(build: Callable[[], nn.Module]) -> None:
    """One step, of which one forward is the user's own."""
    run_loop(build, WAYS["keep"], num_steps=1)


def test_a_hook_is_seen_as_often_as_in_the_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[int, ...]] = []

    def log(_module: nn.Module, _args: object, out: Tensor) -> None:
        calls.append(tuple(out.shape))
        print("hooked")  # noqa: T201 - as people watch

    def build() -> nn.Module:
        model = chain()
        model.layers[0].register_forward_hook(log)
        return model

    planned(build)
    assert calls == [(2, 3, 16)]
    assert capsys.readouterr().out == "hooked\n"


def test_a_hook_that_changes_an_output_counts_in_the_plan_and_in_the_run() -> None:
    def build() -> nn.Module:
        model = chain()
        model.layers[1].register_forward_hook(lambda _module, _args, out: out * 0.5)
        return model

    plain, streamed = (run_loop(build, way) for way in (PLAINLY, WAYS["planned"]))
    assert differing(streamed, plain) == []


def test_a_hook_that_keeps_an_output_for_the_forward_keeps_it_in_the_copy_too() -> None:
    class Looking(Chain):
        def __init__(self) -> None:
            super().__init__(Plain(), Plain())
            seen = self.seen = {}  # type: dict[str, Tensor]
            self.layers[0].register_forward_hook(lambda _m, _a, out: seen.update(first=out))

        def forward(self, x_BTD: Tensor) -> Tensor:
            loss: Tensor = super().forward(x_BTD) + self.seen.pop("first").mean()
            return loss

    plain, streamed = (run_loop(Looking, way) for way in (PLAINLY, WAYS["keep"]))
    assert differing(streamed, plain) == []


def test_counters_in_globals_classes_closures_and_lists_stay() -> None:
    def build() -> nn.Module:
        return Chain(*(kind() for kind in outside.KINDS))

    run_loop(build, PLAINLY, num_steps=1)
    expected = outside.counts()
    outside.start_anew()
    planned(build)
    assert outside.counts() == expected


def test_no_random_number_is_drawn() -> None:
    class Drawing(Plain):
        def forward(self, x_BTD: Tensor) -> Tensor:
            drawn = random.random() + np.random.rand() + torch.rand(()).item()
            return super().forward(x_BTD) * drawn

    def after(way: str) -> tuple[float, float, float]:
        run_loop(lambda: Chain(Drawing(), Drawing()), WAYS[way], num_steps=1)
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    run_loop(lambda: Chain(Drawing(), Drawing()), PLAINLY, num_steps=1)
    expected = random.random(), float(np.random.rand()), torch.rand(()).item()
    assert after("keep") == expected


class Prepared:
    """As accelerate keeps what it has put around a forward: no pickle takes it apart."""

    def __getstate__(self) -> object:
        raise pickle.PicklingError("unwrap the model first")


class Odd(Plain):
    """Its attributes cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.prepared = Prepared()
        self.log = logging.getLogger("training")
        self.numbers = (number for number in range(3))
        self.doubled = self.linear.weight * 2
        with Path(__file__).open() as self.file:
            pass


def test_attributes_that_cannot_be_copied_are_no_obstacle() -> None:
    planned(lambda: Chain(Odd(), Odd()))


def loaded() -> nn.Module:
    return Saved().requires_grad_(False)


class Saved(Plain):
    """Is saved and loaded where it is pickled, as Keras's layers are; that makes another one."""

    def __init__(self) -> None:
        super().__init__()
        self.variables = [self.linear.weight]

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, ()

    def forward(self, x_BTD: Tensor) -> Tensor:
        loss: Tensor = super().forward(x_BTD) + (x_BTD @ self.variables[0]).mean()
        return loss


class Imported:
    """As a library holds what it imports late: whatever it is asked, it imports."""

    def __getattr__(self, name: str) -> object:
        raise ImportError("tensorflow is not installed")


late: object = Imported()


class Late(Plain):
    """Its code names something that is not installed."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        loss: Tensor = super().forward(x_BTD + (late is None))
        return loss


@pytest.mark.parametrize("kind", [Saved, Late])
def test_layers_of_other_libraries_are_planned_and_trained(kind: type[Plain]) -> None:
    plain, streamed = (
        run_loop(lambda: Chain(kind(), kind()), way) for way in (PLAINLY, WAYS["planned"])
    )
    assert differing(streamed, plain) == []


def wrapped() -> nn.Module:
    """A forward that a user has put around a layer's own."""
    model = chain()
    own = model.layers[0].forward
    model.layers[0].forward = lambda x_BTD: own(x_BTD) * 0.5
    return model


def hooked_by_default() -> nn.Module:
    """Each layer's hook has the layer as a default argument, as loops write it."""
    model = chain()
    for layer in model.layers:
        layer.register_forward_hook(lambda _m, _a, out, layer=layer: out + layer.linear.bias)
    return model


NAMED: dict[str, nn.Module] = {}


class Naming(Bare):
    """Its forward finds the model in a global."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        linear = NAMED["model"].get_submodule("layers.0.linear")
        out: Tensor = linear(x_BTD)
        return self.inner(out)


def named() -> nn.Module:
    NAMED["model"] = model = Chain(Plain(), Naming(), Plain())
    return model


def parametrized() -> nn.Module:
    model = chain()
    for layer in model.layers:
        parametrizations.weight_norm(layer.linear)  # type: ignore[arg-type]
    return model


def pruned() -> nn.Module:
    model = chain()
    for layer in model.layers:
        prune.l1_unstructured(layer.linear, "weight", amount=0.3)
    return model


@pytest.mark.parametrize(
    ("build", "way"),
    checkerboard(
        (wrapped, hooked_by_default, named, parametrized, pruned),
        ("recompute", "planned"),
        one_in=3,
    ),
)
def test_what_torch_and_users_put_around_layers_streams(
    build: Callable[[], nn.Module], way: str
) -> None:
    plain, streamed = (run_loop(build, each) for each in (PLAINLY, WAYS[way]))
    assert differing(streamed, plain) == []


class Lazy:
    """As modules that are loaded when somebody asks for something."""

    def __deepcopy__(self, _memo: object) -> "Lazy":
        return self

    def __getattr__(self, name: str) -> object:
        raise ImportError(name)


def test_what_raises_when_it_is_asked_is_not_asked() -> None:
    def build() -> nn.Module:
        model = chain()
        vars(model)["lazy"] = [Lazy()]
        return model

    planned(build)
