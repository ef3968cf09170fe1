"""Models of Keras 3 on torch train layer by layer, with the weights of the plain loop."""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="Keras is not installed")

import keras
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import openwafer
from openwafer.training.frontends.loop.keras_trees import hang_layers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WIDTH = 256
# Of weights and the states of AdamW there are 3.4 MB.
DEVICE_MEMORY = "2500KiB"


def functional() -> Any:
    """With two ways to one sum, a norm and dropout, and a name that models have already."""
    features = keras.layers.Input((32,))
    hidden = keras.layers.Dense(WIDTH, activation="relu")(features)
    for _ in range(3):
        branch = keras.layers.Dense(WIDTH, activation="gelu")(hidden)
        hidden = keras.layers.Add()([hidden, branch])
    hidden = keras.layers.Dropout(0.1)(keras.layers.LayerNormalization()(hidden))
    return keras.Model(features, keras.layers.Dense(10, name="output")(hidden))


def sequential() -> Any:
    inner = keras.Sequential([keras.layers.Dense(WIDTH, activation="relu") for _ in range(2)])
    layers = [inner, keras.layers.Dense(WIDTH), keras.layers.Dense(WIDTH), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.build((None, 32))
    return model


def normalized() -> Any:
    """With layers whose calls write: moving averages, and seeds of noise."""
    features = keras.layers.Input((32,))
    hidden = features
    for _ in range(4):
        hidden = keras.layers.Dense(WIDTH, activation="relu")(hidden)
        hidden = keras.layers.GaussianNoise(0.1)(keras.layers.BatchNormalization()(hidden))
    return keras.Model(features, keras.layers.Dense(10)(hidden))


class Layered(torch.nn.Module):
    """A module of torch that holds one of Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 32)
        self.rest = sequential()

    def forward(self, features: torch.Tensor, training: bool) -> torch.Tensor:
        found: torch.Tensor = self.rest(self.first(features), training=training)
        return found


def trained(build: Any, device_memory: str | None, num_steps: int = 4) -> tuple[Any, list[float]]:
    keras.utils.set_random_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(list(dict(model.named_parameters()).values()), lr=1e-3)
    features, labels = torch.randn(8, 32), torch.randint(0, 10, (8,))
    if device_memory is not None:
        openwafer.stream_weights(model, optimizer, device_memory=device_memory)
    losses = []
    for _ in range(num_steps):
        loss = cross_entropy(model(features, training=True), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("build", [functional, sequential, Layered, normalized])
def test_a_model_learns_what_it_learns_plainly(build: Any) -> None:
    assert trained(build, DEVICE_MEMORY)[1] == trained(build, None)[1]


@pytest.mark.parametrize("build", [functional, sequential])
def test_each_layer_streams_by_itself(build: Any) -> None:
    keras.utils.set_random_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(list(dict(model.named_parameters()).values()))
    with openwafer.stream_weights(model, optimizer, device_memory=DEVICE_MEMORY) as streamed:
        model(torch.zeros(2, 32), training=True).sum().backward()
        optimizer.step()
        assert streamed.plan is not None
        assert sum(layer.name.startswith("dense") for layer in streamed.plan.layers) >= 2


def test_keras_saves_what_was_trained_and_loads_it(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="Keras saves weights as HDF5")
    expected = trained(functional, None)[0].get_weights()
    model, _ = trained(functional, DEVICE_MEMORY)
    model.save_weights(tmp_path / "a.weights.h5")
    loaded = functional()
    loaded.load_weights(tmp_path / "a.weights.h5")
    for found in (model.get_weights(), loaded.get_weights()):
        assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_moving_averages_and_seeds_are_those_of_the_plain_loop() -> None:
    plain, streamed = (trained(normalized, memory)[0] for memory in (None, DEVICE_MEMORY))
    pairs = zip(plain.variables, streamed.variables, strict=True)
    assert all(np.array_equal(*map(keras.ops.convert_to_numpy, pair)) for pair in pairs)


def test_names_of_weights_do_not_count_models_of_the_process() -> None:
    names = []
    for _ in range(2):
        model = sequential()
        hang_layers(model, [])
        names.append([name for name, _ in model.named_parameters()])
    assert names[0] == names[1]


class Twins(keras.layers.Layer):  # type: ignore[misc]
    """Two layers of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.both = [keras.layers.Dense(4, name="twin") for _ in range(2)]

    def call(self, features: Any) -> Any:
        return self.both[1](self.both[0](features))


def test_layers_of_one_name_each_keep_their_weights() -> None:
    model = keras.Sequential([Twins()])
    model(torch.zeros(1, 4))
    hang_layers(model, [])
    assert len(list(model.parameters())) == len(model.trainable_variables) == 4
