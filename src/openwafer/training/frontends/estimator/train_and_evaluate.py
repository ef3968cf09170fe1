"""Training, with evaluations of its checkpoints on the way."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from openwafer.training.frontends.estimator.estimator import CerebrasEstimator
from openwafer.training.frontends.estimator.hooks import SessionRunHook
from openwafer.training.frontends.estimator.training import SavingListener

__all__ = ["EvalSpec", "TrainSpec", "train_and_evaluate"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class TrainSpec:
    """What is trained; see :meth:`CerebrasEstimator.train`."""

    input_fn: Function
    max_steps: int | None = None
    hooks: Sequence[SessionRunHook] = ()
    saving_listeners: Sequence[SavingListener] = ()


@dataclass(frozen=True)
class EvalSpec:
    """What is evaluated, and when; see :meth:`CerebrasEstimator.evaluate`.

    Attributes:
        throttle_secs: that pass at least from one evaluation to the next, but for the last one.
        start_delay_secs: of evaluators beside a training; nothing reads it.
    """

    input_fn: Function
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[SessionRunHook] = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600


def train_and_evaluate(
    estimator: CerebrasEstimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]]:
    """Train, and evaluate checkpoints behind the first when they are written, and the last.

    Training has the random numbers that it would have without evaluations.

    Args:
        estimator: that trains.
        train_spec: on what, and for how long.
        eval_spec: on what, and how often.

    Returns:
        Results of the last evaluation, None where nothing was left to train, and a list of
        nothing, where TensorFlow has results of exporters.

    Raises:
        OpenwaferError: what `train` and `evaluate` raise.
    """
    evaluations = _Evaluations(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=(*train_spec.saving_listeners, evaluations),
    )
    return evaluations.results, []


class _Evaluations:
    """Evaluates what was written; a listener of checkpoints."""

    def __init__(self, estimator: CerebrasEstimator, spec: EvalSpec) -> None:
        self._estimator, self._spec = estimator, spec
        self._is_first, self._next_time = True, 0.0
        self.results: dict[str, Any] | None = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluate, unless it is what training began with, or too early."""
        if not self._is_first and time.monotonic() >= self._next_time:
            self._evaluate()
        self._is_first = False

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluate the last one."""
        if self.results is None or self.results["global_step"] != global_step_value:
            self._evaluate()

    def _evaluate(self) -> None:
        spec, before = self._spec, torch.get_rng_state()
        self.results = self._estimator.evaluate(
            spec.input_fn, spec.steps, spec.hooks, name=spec.name
        )
        torch.set_rng_state(before)
        self._next_time = time.monotonic() + spec.throttle_secs
