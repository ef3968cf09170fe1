"""Datasets of tf.data, where TensorFlow is installed, train as the same arrays do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.estimator.cs_estimator import (
    CerebrasEstimator,
    EstimatorSpec,
    RunConfig,
)
from tests.training.frontends.estimator_scripts import Losses

tf: Any = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((22, 128), dtype=np.float32)
CLASSES = np.arange(22, dtype=np.int32) % 10


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    body = [torch.nn.Linear(128, 128) for _ in range(4)]
    head = torch.nn.Linear(128, 10)
    logits = head(torch.nn.Sequential(*body)(features["x"]))
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"class": logits.argmax(-1)})
    loss = torch.nn.functional.cross_entropy(logits, labels)
    weights = [*head.parameters(), *(one for each in body for one in each.parameters())]
    return EstimatorSpec(mode, loss=loss, train_op=torch.optim.AdamW(weights, lr=1e-2))


def of_tensorflow() -> Any:
    rows = tf.data.Dataset.from_tensor_slices((ROWS, CLASSES))
    named = rows.map(lambda row, label: ({"x": row * 2}, label))
    return named.cache().batch(4).repeat(2).prefetch(tf.data.AUTOTUNE)


def of_arrays() -> Any:
    starts = [*range(0, 22, 4)] * 2
    return [({"x": ROWS[n : n + 4] * 2}, CLASSES[n : n + 4]) for n in starts]


def estimator_in(folder: Path) -> CerebrasEstimator:
    config = RunConfig(save_checkpoints_steps=2)
    return CerebrasEstimator(model_fn, folder, config=config, device_memory="400KiB")


def trained(folder: Path, input_fn: Callable[..., Any]) -> CerebrasEstimator:
    torch.manual_seed(0)
    return estimator_in(folder).train(input_fn)


def test_weights_losses_and_predictions_are_those_of_the_same_arrays(tmp_path: Path) -> None:
    theirs = trained(tmp_path / "tf", of_tensorflow)
    plain = trained(tmp_path / "arrays", of_arrays)
    for name in plain.get_variable_names():
        assert np.array_equal(theirs.get_variable_value(name), plain.get_variable_value(name))
    assert theirs.evaluate(of_tensorflow) == plain.evaluate(of_arrays)
    classes = [one["class"] for one in theirs.predict(of_tensorflow)]
    assert classes == [one["class"] for one in plain.predict(of_arrays)]
    assert len(classes) == 44


def of_generator() -> Any:
    shape = (tf.TensorSpec((4, 128), tf.float32), tf.TensorSpec((4,), tf.int32))
    pairs = [(one["x"], labels) for one, labels in of_arrays() if len(labels) == 4]
    found = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=shape)
    return found.map(lambda row, label: ({"x": row}, label))


def test_a_run_over_tf_data_that_was_cut_off_has_the_bits_of_an_unbroken_one(
    tmp_path: Path,
) -> None:
    whole, broken = (estimator_in(tmp_path / name) for name in ("whole", "broken"))
    torch.manual_seed(0)
    whole.train(of_generator, hooks=[expected := Losses()], max_steps=6)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        broken.train(of_generator, hooks=[Losses(dies_behind=3)], max_steps=6)
    found = estimator_in(tmp_path / "broken").train(of_generator, [after := Losses()], max_steps=6)
    assert after.seen == expected.seen[2:]
    for name in whole.get_variable_names():
        assert np.array_equal(found.get_variable_value(name), whole.get_variable_value(name))


def test_a_model_function_of_tensorflows_layers_is_told_what_to_write(tmp_path: Path) -> None:
    def of_keras(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        guesses = tf.keras.layers.Dense(1)(features["x"].numpy())[:, 0]
        loss = tf.reduce_mean(guesses - labels.numpy())
        return EstimatorSpec(mode, loss=loss, train_op=tf.keras.optimizers.Adam())

    with pytest.raises(OpenwaferError, match="EagerTensor as its loss") as caught:
        CerebrasEstimator(of_keras, tmp_path).train(of_arrays)
    assert "write model_fn in torch, or in Keras 3 with KERAS_BACKEND=torch" in str(caught.value)
