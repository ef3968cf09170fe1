"""Model functions of Keras 3 on torch train as estimators with the bits of a plain loop."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="Keras is not installed")

import keras
import torch
from torch.nn.functional import cross_entropy

from openwafer.training.frontends.estimator.cs_estimator import (
    CerebrasEstimator,
    CSRunConfig,
    EstimatorSpec,
)
from tests.training.frontends.estimator_scripts import Losses

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# Of weights and the states of AdamW there are 2.4 MB.
CAP = "1600KiB"


class FreeLayers:
    """Layers without a model, with moving averages, dropout and noise of a seed of its own."""

    def __init__(self) -> None:
        self.layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
        self.norm, self.noise = keras.layers.BatchNormalization(), keras.layers.GaussianNoise(0.1)
        self.drop, self.last = keras.layers.Dropout(0.1), keras.layers.Dense(10)

    def __call__(self, features: Any, training: bool) -> torch.Tensor:
        for layer in self.layers:
            features = layer(features)
        features = self.drop(self.norm(features, training=training), training=training)
        logits: torch.Tensor = self.last(self.noise(features, training=training))
        return logits

    def parameters(self) -> list[torch.Tensor]:
        layers = [*self.layers, self.norm, self.last]
        return [variable.value for layer in layers for variable in layer.trainable_variables]


def functional() -> Any:
    inputs = hidden = keras.Input((32,))
    for _ in range(4):
        hidden = keras.layers.Dense(256, activation="relu")(hidden)
        hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model(inputs, keras.layers.Dense(10)(hidden))


def attending() -> Any:
    """A stack whose attention constructs layers when it is built."""
    layers = [keras.layers.Dense(256), keras.layers.Reshape((4, 64)), Attends()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(256), keras.layers.Dense(10)]
    return keras.Sequential(layers)


class Attends(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.MultiHeadAttention(num_heads=4, key_dim=64)

    def call(self, x: Any) -> Any:
        return x + self.inner(x, x)


BUILDS: list[Callable[[], Any]] = [FreeLayers, functional, attending]


def batches(num_batches: int = 6) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_batches):
        features = torch.randn(8, 32, generator=generator)
        yield features, torch.randint(0, 10, (8,), generator=generator)


def estimator(build: Callable[[], Any], folder: Path) -> CerebrasEstimator:
    def model_fn(features: torch.Tensor, labels: torch.Tensor, mode: str) -> EstimatorSpec:
        model = build()
        loss = cross_entropy(model(features, training=mode == "train"), labels)
        optimizer = torch.optim.AdamW(list(model.parameters()), lr=1e-3)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer)

    keras.utils.set_random_seed(0)
    config = CSRunConfig(save_checkpoints_steps=2)
    return CerebrasEstimator(model_fn, folder, config=config, device_memory=CAP)


def plain(build: Callable[[], Any]) -> tuple[list[float], float]:
    """Losses of the plain loop, and of the last batch without training."""
    keras.utils.set_random_seed(0)
    model, losses, optimizer = build(), list[float](), None
    for features, labels in batches():
        loss = cross_entropy(model(features, training=True), labels)
        optimizer = optimizer or torch.optim.AdamW(list(model.parameters()), lr=1e-3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, cross_entropy(model(features, training=False), labels).item()


@pytest.mark.parametrize("build", BUILDS)
def test_losses_are_those_of_the_plain_loop_and_of_a_run_that_was_cut_off(
    build: Callable[[], Any], tmp_path: Path
) -> None:
    losses, evaluated = plain(build)
    first, second = Losses(dies_behind=5), Losses()
    with pytest.raises(KeyboardInterrupt):
        estimator(build, tmp_path).train(batches, hooks=[first], max_steps=6)
    found = estimator(build, tmp_path).train(batches, hooks=[second], max_steps=6)
    assert [*first.seen, *second.seen] == [*losses[:5], *losses[4:]]
    *_, last = batches()
    assert found.evaluate(lambda: [last])["loss"] == pytest.approx(evaluated, rel=1e-6)


def test_later_calls_add_nothing_to_models_of_the_first(tmp_path: Path) -> None:
    made = []

    def build() -> Any:
        inputs = keras.Input((32,))
        hidden = keras.layers.Dense(10)(inputs)
        made.append(keras.Model(inputs, keras.ops.add(hidden, hidden)))
        return made[-1]

    estimator(build, tmp_path).train(batches, max_steps=3)
    assert len({id(model) for model in made}) == 1
    nodes = [getattr(one, f"_{way}bound_nodes") for one in made[0].layers for way in ("in", "out")]
    assert [len(one) for one in nodes] == [1, 1, 1, 2]
