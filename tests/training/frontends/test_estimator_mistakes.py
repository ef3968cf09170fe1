"""What a script of the Estimator style may get wrong, and what it is told."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.estimator.cs_estimator import (
    CerebrasEstimator,
    CSRunConfig,
    EstimatorSpec,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    StopAtStepHook,
    get_global_step,
)

Spec = Callable[[str, Tensor, torch.optim.Optimizer], Any]
ROWS = [(torch.ones(4, 2), torch.ones(4, 3))] * 2


def model(features: Tensor, labels: Tensor, mode: str, params: Mapping[str, Any]) -> EstimatorSpec:
    """A linear model, whose spec `params` may make."""
    net = nn.Linear(features.shape[1], params.get("outputs", 3))
    out = net(features)
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"out": out})
    loss = (out - labels[:, : out.shape[1]]).square().mean()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    spec: Spec = params.get("spec", lambda mode, loss, opt: EstimatorSpec(mode, None, loss, opt))
    found: EstimatorSpec = spec(mode, loss, optimizer)
    return found


def made(folder: Path, model_fn: Any = model, **params: Any) -> CerebrasEstimator:
    return CerebrasEstimator(model_fn, folder, params=params)


def train(folder: Path, spec: Spec) -> None:
    made(folder, spec=spec).train(lambda: ROWS)


def train_on(folder: Path, *batches: Any) -> None:
    made(folder).train(lambda: batches and list(batches))


def on_another_size(folder: Path) -> None:
    made(folder).train(lambda: ROWS)
    made(folder, outputs=2).evaluate(lambda: ROWS)


def on_another_model(folder: Path) -> None:
    made(folder).train(lambda: ROWS)

    def two(features: Tensor, labels: Tensor, mode: str) -> EstimatorSpec:
        out = nn.Linear(2, 3)(nn.Linear(2, 2)(features))
        return EstimatorSpec(mode, loss=(out - labels).mean())

    made(folder, two).evaluate(lambda: ROWS)


def on_steps(folder: Path, **steps: int) -> None:
    made(folder).train(lambda: ROWS, **steps)  # type: ignore[arg-type]


def with_hook(folder: Path, fetches: Any) -> None:
    class Hook(SessionRunHook):
        def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
            return SessionRunArgs(fetches)

    made(folder).train(lambda: ROWS, hooks=[Hook()])


def calling(inside: Callable[[Tensor], Tensor]) -> Callable[[Path], object]:
    def model_fn(features: Tensor, labels: Tensor, mode: str) -> EstimatorSpec:
        net = nn.Linear(2, 3)
        loss = (inside(net(features)) - labels).square().mean()
        return EstimatorSpec(mode, loss=loss, train_op=torch.optim.SGD(net.parameters(), lr=0.1))

    return lambda folder: made(folder, model_fn).train(lambda: ROWS)


class Dense(nn.Identity):
    """As a layer of Keras on torch."""

    __module__ = "keras.src.layers.core.dense"


def rewriting(folder: Path) -> None:
    def model_fn(features: Tensor, labels: Tensor, mode: str) -> EstimatorSpec:
        net = nn.Linear(2, 3)
        nn.init.ones_(net.weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return EstimatorSpec(mode, loss=net(features).mean() + labels.mean(), train_op=optimizer)

    made(folder, model_fn).train(lambda: ROWS)


def without_labels(folder: Path) -> None:
    made(folder, lambda features, mode: features + mode).train(lambda: ROWS)


def asking_for_more(folder: Path) -> None:
    made(folder).train(lambda path: path)


def no_index(folder: Path) -> None:
    (folder / "checkpoint").write_text("torn")
    made(folder).evaluate(lambda: ROWS)


def torn(folder: Path) -> None:
    made(folder).train(lambda: ROWS)
    (folder / "model.ckpt-2.safetensors").write_bytes(b"torn")
    made(folder).evaluate(lambda: ROWS)


COUNT = iter(range(1000))


MISTAKES: dict[str, Callable[[Path], object]] = {
    "estimator-loss: without loss": partial(
        train, spec=lambda mode, _, optimizer: EstimatorSpec(mode, train_op=optimizer)
    ),
    "estimator-loss: returned a Tensor of shape (2,)": partial(
        train, spec=lambda mode, loss, op: EstimatorSpec(mode, None, loss.repeat(2), op)
    ),
    "estimator-train-op: without train_op": partial(
        train, spec=lambda mode, loss, _: EstimatorSpec(mode, loss=loss)
    ),
    "estimator-train-op: returned a str as its train_op": partial(
        train, spec=lambda mode, loss, _: EstimatorSpec(mode, loss=loss, train_op="Adam")
    ),
    "estimator-train-op: without an optimizer": partial(
        train, spec=lambda mode, loss, _: EstimatorSpec(mode, loss=loss, train_op=[])
    ),
    "estimator-spec: returned a spec of the mode 'eval'": partial(
        train, spec=lambda _, loss, optimizer: EstimatorSpec("eval", None, loss, optimizer)
    ),
    "estimator-spec: returned a Tensor, and not an EstimatorSpec": partial(
        train, spec=lambda _, loss, __: loss
    ),
    "estimator-no-batches: has given no batch": partial(lambda folder: made(folder).train(list)),
    "estimator-input: is to return batches, and got a int": lambda folder: made(folder).train(
        lambda: 3
    ),
    "estimator-input: returned one batch, which has no end": lambda folder: (
        made(folder).train(lambda: ROWS, steps=1).evaluate(lambda: ROWS[0])
    ),
    "estimator-batch: has given a tuple of 3": lambda folder: train_on(folder, (1.0, 2.0, 3.0)),
    "estimator-batch: 'text' in a batch": lambda folder: made(folder).train(
        lambda: [{"a": "text"}]
    ),
    "estimator-batch-shape: batch 2 of": lambda folder: train_on(
        folder, ROWS[0], (torch.ones(4, 5), torch.ones(4, 3))
    ),
    "estimator-steps: steps is 3 and max_steps is 4": partial(on_steps, steps=3, max_steps=4),
    "estimator-steps: steps is 0": partial(on_steps, steps=0),
    "estimator-steps: StopAtStepHook got": lambda _: StopAtStepHook(),
    "estimator-checkpoint-shape: (2, 2) in model_fn, and (3, 2) in": on_another_size,
    "estimator-checkpoint-missing: has nothing of that name": on_another_model,
    "estimator-no-checkpoint: has no checkpoint": lambda folder: made(folder).evaluate(
        lambda: ROWS
    ),
    "estimator-index: names no checkpoint": no_index,
    "estimator-checkpoint: model.ckpt-2.safetensors is no checkpoint": torn,
    "estimator-fetch: a hook asks for 'accuracy'": partial(with_hook, fetches="accuracy"),
    "estimator-fetch: a Tensor that is not in the spec": partial(with_hook, fetches=torch.ones(1)),
    "estimator-construction: its Dropout with p=": calling(
        lambda x: x + nn.Dropout(p=next(COUNT) / 1000)(x)
    ),
    "estimator-construction: constructs a ReLU where it constructed a SGD": calling(
        lambda x: nn.ReLU()(x) if next(COUNT) % 2 else x
    ),
    "estimator-keras: is the first to import Keras": calling(lambda x: x + Dense()(x)),
    "estimator-weight: writes to the weight 'linear.weight'": rewriting,
    "estimator-signature: takes no labels": without_labels,
    "estimator-signature: asks for path": asking_for_more,
    "estimator-config: has no option 'save_checkpoint_steps'": lambda _: CSRunConfig(
        save_checkpoint_steps=3
    ),
    "estimator-config: config is a dict": lambda folder: CerebrasEstimator(
        print,
        folder,
        config={"width": 3},  # type: ignore[arg-type]
    ),
    "estimator-config: compile_dir, the third argument, is a CSRunConfig": lambda folder: (
        CerebrasEstimator(print, folder, CSRunConfig())
    ),
    "estimator-config: and save_checkpoints_secs is 2": lambda _: CSRunConfig(
        save_checkpoints_steps=3, save_checkpoints_secs=2
    ),
    "estimator-model-dir: and that of config is other": lambda folder: CerebrasEstimator(
        model, folder, config=CSRunConfig("other")
    ),
    "estimator-mode: has no mode 'predict'": lambda folder: made(folder).compile(
        lambda: ROWS, mode="predict"
    ),
    "estimator-global-step: no estimator runs": lambda _: get_global_step(),
    "estimator-predict-keys: 'in'": lambda folder: next(
        made(folder).train(lambda: ROWS).predict(lambda: ROWS, predict_keys=["in"])
    ),
    "estimator-variable-name: 'bias'": lambda folder: (
        made(folder).train(lambda: ROWS).get_variable_value("bias")
    ),
}


@pytest.mark.parametrize("told", MISTAKES)
def test_a_mistake_is_told_with_a_remedy(told: str, tmp_path: Path) -> None:
    code, _, text = told.partition(": ")
    with pytest.raises(OpenwaferError) as caught:
        MISTAKES[told](tmp_path)
    found = caught.value.diagnostics[0]
    assert found.code == code
    assert text in found.message
    assert found.help
