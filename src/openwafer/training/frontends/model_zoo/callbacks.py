"""Callbacks that a trainer may be given."""

import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.model_zoo.hooks import Callback
from openwafer.training.frontends.present import nn as present_nn
from openwafer.training.frontends.present.loader import size_of
from openwafer.training.frontends.present.metrics import Metric
from openwafer.training.frontends.present.rates import RateTracker

if TYPE_CHECKING:
    from openwafer.training.frontends.model_zoo.trainer import Trainer

_LOG = logging.getLogger("openwafer.trainer")
_LAYER: Final = re.compile(r".*layers\.(\d+)\.")
_DENSE: Final = ("embedding", "norm", "lm_head", "pe_helper")


class LogLoss(Callback):
    """Tells the loggers of losses: the mean of a step's batches, and of an evaluation.

    A trainer has it always.
    """

    def __init__(self) -> None:
        self._losses: list[float] = []
        self.avg_eval_loss: float | None = None

    def on_train_batch_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell of a training step."""
        loss = outputs["loss"].detach().clone()
        trainer.at_end_of_step(lambda: self._take(trainer, loss))

    def _take(self, trainer: "Trainer", loss: Tensor) -> None:
        self._losses.append(loss.item())
        if trainer.should_run_optimizer_step:
            trainer.log_metrics(loss=self._mean())

    def on_validate_batch_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell of a batch of an evaluation."""
        if "loss" in outputs:
            loss = outputs["loss"].detach().clone()
            trainer.at_end_of_step(lambda: self._take_validation(trainer, loss))

    def _take_validation(self, trainer: "Trainer", loss: Tensor) -> None:
        self._losses.append(loss.item())
        trainer.log_metrics(val_loss=self._losses[-1])

    def on_validate_end(self, trainer: "Trainer", model: Any, loop: Any) -> None:
        """Tell of an evaluation."""
        if self._losses:
            self.avg_eval_loss = self._mean()
            _LOG.info("Avg Eval Loss: %s", self.avg_eval_loss)
            trainer.log_metrics(loss=self.avg_eval_loss)

    def _mean(self) -> float:
        losses, self._losses = self._losses, []
        return sum(losses) / len(losses)


class CheckLoss(Callback):
    """Ends a run whose loss is no finite number.

    Raises:
        OpenwaferError: ``trainer-loss``, in the step.
    """

    def on_train_step_end(self, trainer: "Trainer", model: Any, outputs: Any, batch: Any) -> None:
        """Look at a training step."""
        self._check_later(trainer, outputs)

    def on_validate_step_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any
    ) -> None:
        """Look at a batch of an evaluation."""
        self._check_later(trainer, outputs)

    def _check_later(self, trainer: "Trainer", outputs: Any) -> None:
        if "loss" in outputs:
            loss = outputs["loss"].detach().clone()
            trainer.at_end_of_step(lambda: _require_finite(trainer, loss))


def _require_finite(trainer: "Trainer", loss: Tensor) -> None:
    if not torch.isfinite(loss).all():
        raise error(
            "trainer-loss",
            f"the loss of step {trainer.global_step} is {loss.item()}",
            help="lower the learning rate, warm it up, or clip gradients by max_gradient_norm",
        )


class LogOptimizerParamGroup(Callback):
    """Tells of values of the optimizer's groups, such as their learning rates.

    Args:
        keys: of a group.

    Raises:
        OpenwaferError: ``trainer-callback`` of one that a group does not have.
    """

    def __init__(self, keys: str | Iterable[str]) -> None:
        self._keys = [keys] if isinstance(keys, str) else list(keys)

    def setup(self, trainer: "Trainer") -> None:
        """Look whether the keys are there."""
        for group in trainer.optimizer.param_groups if trainer.optimizer else ():
            for key in self._keys:
                if key not in group:
                    raise error(
                        "trainer-callback",
                        f"a group of the optimizer has no {key!r}",
                        help=f"it has {', '.join(sorted(set(group) - {'params'}))}",
                    )

    def on_after_optimizer_step(self, trainer: "Trainer", model: Any, optimizer: Optimizer) -> None:
        """Tell of them."""
        groups = enumerate(optimizer.param_groups)
        trainer.log_metrics(**{f"{key}/{n}": g[key] for n, g in groups for key in self._keys})


class ComputeNorm(Callback):
    """Tells of the norms of weights and of gradients, over the model and by layer.

    Each weight is fetched once more in a step that is logged.
    """

    def on_before_backward(self, trainer: "Trainer", model: nn.Module, outputs: Any) -> None:
        """Measure the weights."""
        if trainer.logs_next_step:
            weights = [p.detach() for p in model.parameters() if p.requires_grad]
            trainer.log_metrics(model_wise_params_norm=_norm(weights))

    def on_before_optimizer_step(
        self, trainer: "Trainer", model: nn.Module, optimizer: Optimizer
    ) -> None:
        """Measure the gradients."""
        if not trainer.logs_next_step:
            return
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        layers = defaultdict[str, list[Tensor]](list)
        for name, gradient in gradients.items():
            if found := _LAYER.match(name):
                layers[found[1]].append(gradient)
        trainer.log_metrics(
            model_wise_grad_norm=_norm(gradients.values()),
            **{f"per_layer_grad_norm/layer_{n}": _norm(own) for n, own in layers.items()},
        )


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.norm()) ** 2 for tensor in tensors))


class ModelEvalMetrics(Callback):
    """Tells of the model's own metrics at the end of an evaluation, and begins them anew."""

    def on_validate_end(self, trainer: "Trainer", model: nn.Module, loop: Any) -> None:
        """Tell of them."""
        metrics = [m for m in model.modules() if isinstance(m, Metric) and m.num_updates]
        found = {metric.name: float(metric) for metric in metrics}
        for metric in metrics:
            metric.reset()
        for name, value in found.items():
            _LOG.info("%s = %s", name, value)
        if found:
            trainer.log_metrics(**found)


class RateProfiler(Callback):
    """Tells how many samples a second are trained, or evaluated."""

    def __init__(self) -> None:
        self._tracker = RateTracker()

    def on_train_start(self, trainer: "Trainer", *_: Any) -> None:
        """Count from here."""
        self._tracker.reset()

    on_validate_start = on_train_start

    def on_train_batch_end(
        self, trainer: "Trainer", model: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch."""
        self._tracker.add(size_of(batch) or 0)
        trainer.at_end_of_step(lambda: self._tell(trainer))

    on_validate_batch_end = on_train_batch_end

    def _tell(self, trainer: "Trainer") -> None:
        if trainer.is_log_step:
            rates = {
                "local_samples_per_sec": self._tracker.rate,
                "avg_samples_per_sec": self._tracker.global_rate,
            }
            trainer.log_metrics(**rates)


class CountParams(Callback):
    """Tells how many weights the model has, and how many of them train."""

    def post_setup(self, trainer: "Trainer") -> None:
        """Tell of them."""
        weights = list(trainer.model.parameters())
        num_trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        num_all = sum(weight.numel() for weight in weights)
        _LOG.info("The model has %d weights, of which %d train.", num_all, num_trained)


class LogSparsity(Callback):
    """Tells of the share of zeros in each sparse weight."""

    def on_after_optimizer_step(
        self, trainer: "Trainer", model: nn.Module, optimizer: Optimizer
    ) -> None:
        """Tell of them."""
        if trainer.sparsity is not None and trainer.logs_next_step:
            trainer.at_end_of_step(lambda: self._tell(trainer, model))

    def _tell(self, trainer: "Trainer", model: nn.Module) -> None:
        masks = {n: b for n, b in model.named_buffers() if n.endswith("_mask")}
        shares = {n.removesuffix("_mask"): 1 - float(b.float().mean()) for n, b in masks.items()}
        trainer.log_metrics(**{f"sparsity/{n}/actual": share for n, share in shares.items()})


class SelectiveGrad(Callback):
    """Lets a part of some weights train; see :class:`present.nn.SelectiveGrad`.

    Args:
        selective_grads: one mapping or several, of ``param_filter`` and ``init_method``; without a
            filter, all matrices but embeddings, norms and heads.

    Raises:
        OpenwaferError: ``present-selective``.
    """

    def __init__(self, selective_grads: dict[str, Any] | list[dict[str, Any]]) -> None:
        listed = [selective_grads] if isinstance(selective_grads, dict) else selective_grads
        self._made = [
            present_nn.SelectiveGrad(
                one.get("param_filter") or _is_matrix, one.get("init_method", "outlier")
            )
            for one in listed
        ]

    def setup(self, trainer: "Trainer") -> None:
        """Choose of the model's weights."""
        for selective in self._made:
            trainer.model.apply(selective)


def _is_matrix(name: str, weight: nn.Parameter) -> bool:
    return weight.ndim > 1 and not any(word in name.lower() for word in _DENSE)
