"""What a model function returns, by the mode in which it is called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from openwafer.diagnostics import OpenwaferError, did_you_mean, error

__all__ = ["EstimatorSpec", "ModeKeys"]


class ModeKeys:
    """Modes of a model function; the strings themselves may be written, too."""

    TRAIN: Final = "train"
    EVAL: Final = "eval"
    PREDICT: Final = "infer"


MODES: Final = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def require_mode(mode: object) -> str:
    """The mode.

    Raises:
        OpenwaferError: ``estimator-mode``.
    """
    for known in MODES:
        if mode == known:
            return known
    raise error(
        "estimator-mode",
        f"a model function has no mode {mode!r}",
        help=did_you_mean(str(mode), MODES),
    )


@dataclass(frozen=True)
class EstimatorSpec:
    """What a model function returns.

    Attributes:
        mode: in which it was called.
        predictions: a tensor, or tensors by name, whose first dimension is the batch.
        loss: a scalar tensor.
        train_op: an optimizer of torch or a :class:`TrainOp`, or several of them and of torch's
            learning-rate schedulers in a sequence.
        eval_metric_ops: metrics by name: a tensor, whose mean over all its elements of all batches
            is the result, or a pair of a total and of what it is divided by, both summed.
        training_hooks, training_chief_hooks, evaluation_hooks, prediction_hooks: hooks for a call
            in that mode, taken from the first spec.
        host_call: a function and its tensors, which give metrics like `eval_metric_ops`.
        export_outputs, scaffold: nothing reads them.
    """

    mode: str
    predictions: torch.Tensor | Mapping[str, torch.Tensor] | None = None
    loss: torch.Tensor | None = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Any = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None
    evaluation_hooks: Sequence[Any] | None = None
    prediction_hooks: Sequence[Any] | None = None
    host_call: tuple[Callable[..., Any], Any] | None = None

    def _replace(self, **changes: Any) -> "EstimatorSpec":
        """The same with other values."""
        return replace(self, **changes)


def check_spec(spec: Any, mode: str, where: str) -> EstimatorSpec:
    """What a model function has returned.

    Args:
        spec: whatever it is.
        mode: in which it was called.
        where: the function and its place, for errors.

    Raises:
        OpenwaferError: ``estimator-spec`` for another thing, or a spec of another mode;
            ``estimator-loss``, ``estimator-train-op`` and ``estimator-predictions`` for what the
            mode needs and is absent.
    """
    if not isinstance(spec, EstimatorSpec):
        raise error(
            "estimator-spec",
            f"{where} returned a {type(spec).__name__}, and not an EstimatorSpec",
            help="return EstimatorSpec(mode=mode, loss=loss, train_op=train_op)",
        )
    if spec.mode != mode:
        raise error(
            "estimator-spec",
            f"{where} was called in the mode {mode!r}, and returned a spec of the mode "
            f"{spec.mode!r}",
            help="return EstimatorSpec(mode=mode, ...) with the mode that model_fn was given",
        )
    if mode == ModeKeys.PREDICT:
        if spec.predictions is None:
            raise _absent("estimator-predictions", where, mode, "predictions")
        return spec
    if spec.loss is None:
        raise _absent("estimator-loss", where, mode, "loss")
    _require_scalar(spec.loss, where)
    if mode == ModeKeys.TRAIN and spec.train_op is None:
        raise _absent("estimator-train-op", where, mode, "train_op")
    return spec


def _absent(code: str, where: str, mode: str, name: str) -> OpenwaferError:
    return error(
        code,
        f"{where} returned a spec of the mode {mode!r} without {name}",
        help=f"return EstimatorSpec(mode=mode, {name}=...) where mode is {mode!r}",
    )


def _require_scalar(loss: object, where: str) -> None:
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return
    shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
    raise error(
        "estimator-loss",
        f"{where} returned a {type(loss).__name__}{shape} as its loss",
        help=remedy_for(loss, "return one number in a torch tensor, as loss.mean() is"),
    )


def remedy_for(value: object, remedy: str) -> str:
    """What to do about a value: another remedy where TensorFlow has computed it."""
    if type(value).__module__.partition(".")[0] != "tensorflow":
        return remedy
    return (
        "write model_fn in torch, or in Keras 3 with KERAS_BACKEND=torch: what TensorFlow's own "
        "layers compute has no weights that could stream"
    )
