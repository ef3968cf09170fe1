"""What scripts import of the Estimator style, under the name of the vendor's module."""

from openwafer.training.frontends.estimator import metrics
from openwafer.training.frontends.estimator.estimator import CerebrasEstimator
from openwafer.training.frontends.estimator.global_step import (
    get_global_step,
    get_or_create_global_step,
)
from openwafer.training.frontends.estimator.hooks import (
    LoggingTensorHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
)
from openwafer.training.frontends.estimator.run_config import CSRunConfig, RunConfig
from openwafer.training.frontends.estimator.spec import EstimatorSpec, ModeKeys
from openwafer.training.frontends.estimator.train_and_evaluate import (
    EvalSpec,
    TrainSpec,
    train_and_evaluate,
)
from openwafer.training.frontends.estimator.train_ops import TrainOp

Estimator = CerebrasEstimator

__all__ = [
    "CSRunConfig",
    "CerebrasEstimator",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "LoggingTensorHook",
    "ModeKeys",
    "RunConfig",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "TrainOp",
    "TrainSpec",
    "get_global_step",
    "get_or_create_global_step",
    "metrics",
    "train_and_evaluate",
]
