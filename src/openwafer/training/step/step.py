"""One training step: forward and backward, loss scale, norm, clip, updates, and their undoing.

A run takes whole steps by :meth:`Step.take`. A loop of your own takes one in pieces, as its lines
come to them: it calls the model, ``backward``, ``clip_grad_norm_``, which is :func:`clip`, and
``optimizer.step()``. Systems that do not lead know of a step what :class:`StepGradients` tells.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.step.gradients import StepGradients
from openwafer.training.step.loss_scale import LossScaler, LossScaling
from openwafer.training.step.speculation import Outcome, Speculation, require_same
from openwafer.training.store.update_rules.clipping import clip_coefficient, total_norm
from openwafer.training.stream.execute.execution import Execution


class NotFiniteError(Exception):
    """A loss or a gradient norm is NaN or infinite; nothing of its step was applied.

    Attributes:
        what: the loss of which micro-batch, or the norm, with its value.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True)
class Clip:
    """A clip of all gradients by their global norm.

    Attributes:
        norm: before it, a scalar.
        coefficient: multiplies the gradients.
    """

    norm: torch.Tensor
    coefficient: float


def clip(
    norms: Mapping[str, torch.Tensor],
    names: Iterable[str],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Clip:
    """The clip that torch's ``clip_grad_norm_`` makes, bit for bit.

    Args:
        norms: of the gradients, by parameter.
        names: all parameters in the model's order, which is the order of the sum.
        max_norm: largest norm that updates may see.
        norm_type: order of the norm.
        error_if_nonfinite: refuses a norm that is NaN or infinite.
    """
    ordered = [norms[name] for name in names if name in norms]
    norm = total_norm(ordered, norm_type, error_if_nonfinite=error_if_nonfinite)
    return Clip(norm, clip_coefficient(norm, max_norm))


class Step(ABC):
    """Takes the steps of a run, one after the other.

    A subclass says how a pass runs, and how its gradients are applied, on the systems of the run.

    Args:
        model: what ``execution`` runs.
        execution: streamed or resident.
        clip_norm: largest global norm of the gradients; ``None`` never clips.
        scaling: how the loss scale moves; ``None`` scales no losses.

    Attributes:
        scaler: has the loss scale.
        gradients: of the step under way.
        speculation: undoes updates that were made before it was known whether they are right.
    """

    def __init__(
        self,
        model: nn.Module,
        execution: Execution,
        *,
        clip_norm: float | None,
        scaling: LossScaling | None,
    ) -> None:
        self._names = tuple(name for name, _ in model.named_parameters())
        self._clip_norm = clip_norm
        is_clipped, is_scaled = clip_norm is not None, scaling is not None
        self.scaler = None if scaling is None else LossScaler(scaling)
        norm_dtype = execution.updater.norm_dtype
        self.gradients = StepGradients(
            is_clipped=is_clipped, is_scaled=is_scaled, norm_dtype=norm_dtype
        )
        execution.watch_gradients(self.gradients.watch)
        self.speculation = Speculation(execution, model, is_needed=is_clipped or is_scaled)

    def take(self, number: int, batches: Sequence[Batch], settled: Callable[[], None]) -> Outcome:
        """Take a step.

        Args:
            number: of the step, from 0.
            batches: its micro-batches, or those of this system.
            settled: called when it is known what is applied, before it is.

        Raises:
            NotFiniteError: a loss or the norm is; everything is as it was before the step.
            OpenwaferError: ``step-not-repeated``; or what the model, store and device meet.
        """
        speculation = self.speculation
        speculation.begin_step()
        try:
            made = self.forward_backward(number, batches)
            if speculation.is_under_way and made.coefficient != 1.0:
                speculation.undo()
                if made.coefficient is not None:
                    speculation.update_at_once(made.coefficient)
                    require_same(made, self.forward_backward(number, batches))
        except NotFiniteError:
            speculation.undo()
            self.abandon()
            raise
        speculation.end_step(is_undone=made.coefficient != 1.0)
        if self.scaler is not None:
            self.scaler.end_step(has_overflowed=made.coefficient is None)
        settled()
        self.apply(made.coefficient)
        return made

    def forward_backward(self, number: int, batches: Sequence[Batch]) -> Outcome:
        """Run a pass over the step; its gradients come unscaled, and are not clipped yet.

        Raises:
            NotFiniteError: see :meth:`take`.
        """
        self.gradients.begin(1.0 if self.scaler is None else self.scaler.scale)
        losses = tuple(self.run(number, batches))
        norm, coefficient = None, 1.0
        if self._clip_norm is not None:
            found = clip(self.gradients.norms, self._names, self._clip_norm)
            norm, coefficient = found.norm.item(), found.coefficient
        if self.gradients.has_overflowed:
            return Outcome(losses, norm, None)
        if norm is not None and not math.isfinite(norm):
            raise NotFiniteError(f"the global norm of the gradients is {norm}")
        return Outcome(losses, norm, coefficient)

    @abstractmethod
    def run(self, number: int, batches: Sequence[Batch]) -> Sequence[float]:
        """Run forward and backward of the micro-batches, with losses times ``gradients.scale``.

        Returns:
            The losses of all micro-batches of the step, without the scale.

        Raises:
            NotFiniteError: one of them is.
        """

    @abstractmethod
    def apply(self, coefficient: float | None) -> None:
        """Multiply the gradients and apply them, on all systems; ``None`` forgets them."""

    @abstractmethod
    def abandon(self) -> None:
        """Forget the gradients of a step that ends the run."""
