"""One training step: forward and backward, loss scale, norm, clip, updates, and their undoing.

A run takes whole steps by :meth:`Step.take`. A loop of your own takes one in pieces, as its lines
come to them: it calls the model, ``backward``, ``clip_grad_norm_``, which is :func:`clip`, and
``optimizer.step()``. Systems that do not lead know of a step what :class:`StepGradients` tells.

The arithmetic of clipping is cut where a streamed step has to cut it: each tensor's norm is taken
when its gradient arrives, the total once all have arrived, and the scaling waits for the update.
The bits are those of ``torch.nn.utils.clip_grad_norm_``.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import error
from openwafer.training.data import Batch
from openwafer.training.store.layout import Part
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import Execution, StreamedExecution
from openwafer.training.stream.execute.snapshot import LayerState, Snapshot
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.torch_private import group_tensors, unscale_and_check, update_scale

NUM_REMEMBERED = 8
# A step that is run again costs one more pass; one that keeps its gradients, half the bytes again.
MAX_UNDONE = 1


@dataclass(frozen=True)
class LossScaling:
    """How the loss scale moves; the defaults are those of ``torch.amp.GradScaler``.

    Attributes:
        initial_scale: what the loss is multiplied by at first.
        growth_factor: multiplies the scale after `growth_interval` good steps in a row.
        backoff_factor: multiplies the scale after a step whose gradients overflow.
        growth_interval: in steps.
    """

    initial_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name, is_right, wanted in (
            ("initial_scale", self.initial_scale > 0, "above 0"),
            ("growth_factor", self.growth_factor > 1, "above 1"),
            ("backoff_factor", 0 < self.backoff_factor < 1, "between 0 and 1"),
            ("growth_interval", self.growth_interval >= 1, "at least 1"),
        ):
            if not is_right:
                raise InvalidFieldError(name, f"expected {wanted}, found {getattr(self, name)}")


class LossScaler:
    """The scale of a run, moved by the kernels that ``torch.amp.GradScaler`` calls.

    Attributes:
        scale: what the loss of the next backward is multiplied by.
    """

    def __init__(self, config: LossScaling) -> None:
        self._config = config
        self._scale = torch.tensor(config.initial_scale, dtype=torch.float32)
        self._num_good_steps = torch.tensor(0, dtype=torch.int32)

    @property
    def scale(self) -> float:
        """See the class."""
        return self._scale.item()

    def end_step(self, *, has_overflowed: bool) -> None:
        """Move the scale, by whether the gradients of a step overflowed."""
        config = self._config
        update_scale(
            self._scale,
            self._num_good_steps,
            torch.tensor([float(has_overflowed)]),
            config.growth_factor,
            config.backoff_factor,
            config.growth_interval,
        )

    def state(self) -> dict[str, float]:
        """The scale and the good steps in a row, for a commit."""
        return {"scale": self.scale, "num_good_steps": self._num_good_steps.item()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state` gave."""
        self._scale.fill_(state["scale"])
        self._num_good_steps.fill_(int(state["num_good_steps"]))


@dataclass(frozen=True)
class GradientReport:
    """What a system knows of the gradients of its records, when a pass is over.

    Attributes:
        norms: by parameter; empty where nobody clips.
        has_overflowed: whether one is not finite, where losses are scaled.
    """

    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    has_overflowed: bool = False


def tensor_norms(
    gradients: Iterable[torch.Tensor],
    norm_type: float = 2.0,
    *,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """The norm of each gradient, a scalar tensor; taken in `dtype` when given.

    That of a complex gradient is a complex number, by which `total_norm` knows where it belongs.

    `norm_type` is any positive number or infinity. Torch adds up a norm of order 2 in one order,
    whatever the number of threads; other orders depend on it beyond some 30000 elements.
    """
    return [_norm(gradient, norm_type, dtype or gradient.dtype) for gradient in gradients]


def _norm(gradient: torch.Tensor, norm_type: float, dtype: torch.dtype) -> torch.Tensor:
    dtype = gradient.dtype if gradient.is_complex() else dtype
    # On the CPU converting first is 20 times faster, to the same bits. Other kernels convert
    # while they read, and no copy takes memory of the device.
    if gradient.device.type == "cpu":
        gradient = gradient.to(dtype)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, norm_type, dtype=dtype)
    return norm.to(dtype)


def kept_norms(
    loan: Arrays, factors: Mapping[str, float], norm_type: float, dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """Norms of gradients that the store keeps, by parameter.

    Args:
        loan: lends them.
        factors: by parameter, what its gradient is multiplied by first.
        norm_type: order of the norms.
        dtype: in which they are taken; ``None`` is that of each gradient.
    """
    with torch.no_grad():
        lent = ((loan.tensor(name, Part.GRADIENTS), factors[name]) for name in factors)
        scaled = (gradient if factor == 1.0 else gradient * factor for gradient, factor in lent)
        return dict(zip(factors, tensor_norms(scaled, norm_type, dtype=dtype), strict=True))


class StepGradients:
    """Takes the loss scale off gradients, then their norms, and notes an overflow.

    Args:
        is_clipped: whether norms are taken.
        is_scaled: whether losses are multiplied by a scale.
        norm_dtype: in which norms are taken; ``None`` is that of each gradient.

    Attributes:
        scale: what the losses of the pass are multiplied by.
        norms: of the pass, by parameter; each that of its whole step.
    """

    def __init__(
        self, *, is_clipped: bool, is_scaled: bool, norm_dtype: torch.dtype | None = None
    ) -> None:
        self._is_clipped, self._is_scaled = is_clipped, is_scaled
        self._norm_dtype = norm_dtype
        self.begin(1.0)

    def begin(self, scale: float) -> None:
        """A pass begins, whose losses are multiplied by a scale."""
        self.scale = scale
        self.norms: dict[str, torch.Tensor] = {}
        self._overflows: dict[torch.device, torch.Tensor] = {}
        self._overflows_elsewhere = False

    def watch(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Look at gradients, each that of its whole step, and unscale them in place."""
        if self._is_scaled:
            self._unscale(gradients.values())
        if self._is_clipped:
            norms = tensor_norms(gradients.values(), dtype=self._norm_dtype)
            self.norms.update(zip(gradients, norms, strict=True))

    def _unscale(self, gradients: Iterable[torch.Tensor]) -> None:
        # As in GradScaler: 1 / scale may underflow in fp32 where it does not in fp64.
        inverse = torch.tensor(self.scale, dtype=torch.float64).reciprocal().item()
        for gradient in gradients:
            device = gradient.device
            if device not in self._overflows:
                self._overflows[device] = torch.zeros(1, dtype=torch.float32, device=device)
            # Filled where it is used: a copy to a GPU would wait for all that it has to compute.
            factor = torch.full((1,), inverse, dtype=torch.float32, device=device)
            unscale_and_check([gradient], self._overflows[device], factor)

    @property
    def has_overflowed(self) -> bool:
        """Whether a gradient of the pass is not finite."""
        return self._overflows_elsewhere or any(map(torch.Tensor.item, self._overflows.values()))

    @property
    def report(self) -> GradientReport:
        """What the other systems are told, when the pass is over."""
        return GradientReport(self.norms, self.has_overflowed)

    def add(self, report: GradientReport) -> None:
        """Learn what another system knows of its gradients."""
        self.norms.update(report.norms)
        self._overflows_elsewhere |= report.has_overflowed


@dataclass(frozen=True)
class Outcome:
    """What a pass over a step has made: equal for equal gradients.

    Attributes:
        losses: of the micro-batches.
        norm: of all gradients before they are clipped; ``None`` where nothing clips.
        coefficient: multiplies the gradients when they are applied; ``None`` forgets them, because
            those of an fp16 step overflowed.
    """

    losses: tuple[float, ...]
    norm: float | None
    coefficient: float | None = field(default=1.0, repr=False)


class Speculation:
    """Decides from the last steps which of the next are updated at once, and undoes those.

    The global norm is known when every gradient has arrived. To wait for it, gradients are kept and
    read again. But most steps of most runs are not clipped: their updates can be made at once,
    while the old version of every record is still in the slot that the last commit named. A step
    that turns out to be clipped is rolled back and run again from the old weights, now with its
    coefficient. The same pass makes the same gradients, so the bits are those of the step that
    waits.

    Args:
        execution: runs the steps; updates can be undone where it streams by a plan of updates on
            push. Others are never made at once.
        model: what it runs.
        is_needed: whether a step may multiply its gradients when all of them are known.

    Attributes:
        undone: of the last steps, oldest first: whether updates made at once were not, or would
            not have been, right.
        is_under_way: whether the step under way is updated at once.
    """

    def __init__(self, execution: Execution, model: nn.Module, *, is_needed: bool) -> None:
        self.undone: tuple[bool, ...] = ()
        self.is_under_way = False
        self._execution: StreamedExecution | None = None
        if is_needed and isinstance(execution, StreamedExecution):
            self._execution = execution if execution.link.timing is UpdateTiming.ON_PUSH else None
        self._model = LayerState(model)
        self._before: tuple[Snapshot, ...] = ()

    def begin_step(self) -> None:
        """Choose how the next step is updated."""
        if self._execution is None:
            return
        # Who looks at micro-batches would see those of a step that is run again twice.
        is_watched = self._execution.executor.gradients.watchers.has_any
        self.is_under_way = sum(self.undone) <= MAX_UNDONE and not is_watched
        if self.is_under_way:
            self.update_at_once()
            self._before = self._model.now(), Snapshot(_generators())
        else:
            self._execution.update_on(UpdateTiming.ON_FETCH)
            self._before = ()

    def update_at_once(self, coefficient: float = 1.0) -> None:
        """Update in the next pass, with gradients times the coefficient."""
        if self._execution is not None:
            self._execution.update_on(UpdateTiming.ON_PUSH, coefficient)

    def undo(self) -> None:
        """Make the store, the counts and the model what they were before the step."""
        if self._execution is not None and self.is_under_way:
            self._execution.roll_back()
            for snapshot in self._before:
                snapshot.put_back()

    def end_step(self, *, is_undone: bool) -> None:
        """Remember whether updates at once were right, or would have been."""
        self.restore((*self.undone, is_undone)[-NUM_REMEMBERED:])
        self.is_under_way = False

    def restore(self, undone: tuple[bool, ...]) -> None:
        """Take over what :attr:`undone` of another process was."""
        if self._execution is not None:
            self.undone = undone


def require_same(first: Outcome, second: Outcome) -> None:
    """Raise ``step-not-repeated`` unless two passes over a step have made the same."""
    if repr(first) != repr(second):
        raise error(
            "step-not-repeated",
            "a step was run again to clip its gradients, and gave others than before",
            notes=(f"first {first}", f"then {second}"),
            help="set streaming.store to dram, or clip_norm to null: then no step is run twice",
        )


def _generators() -> Iterator[tuple[str, object]]:
    """Random generators that a forward may draw from."""
    yield "random", random.__dict__["_inst"]
    yield "numpy.random", np.random.__dict__["mtrand"].__dict__["_rand"]
    yield "torch", torch.default_generator


class NotFiniteError(Exception):
    """A loss or a gradient norm is NaN or infinite; nothing of its step was applied.

    Attributes:
        what: the loss of which micro-batch, or the norm, with its value.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def total_norm(
    norms: Sequence[torch.Tensor],
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """The norm over all gradients, a scalar tensor; `norms` in the order of the parameters.

    Raises `gradient-nonfinite` on request, as `clip_grad_norm_` does.
    """
    if not norms:
        return torch.tensor(0.0)
    # Torch sorts gradients by dtype before it adds up, and so the norms have to be.
    groups = group_tensors([list(norms)]).values()
    members = [norm.real for ([held], _) in groups for norm in held if norm is not None]
    # Some gradients of a run on a GPU are complete in host memory.
    where = max((norm.device for norm in members), key=lambda device: device.type != "cpu")
    ordered = [norm.to(where) for norm in members]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(ordered), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        count = sum(not math.isfinite(norm) for norm in ordered)
        raise error(
            "gradient-nonfinite",
            f"the gradients' total norm is {total.item()}, so that they cannot be clipped",
            notes=(f"{count} of {len(norms)} tensors have a norm that is not finite",),
            help="lower the learning rate, or set error_if_nonfinite to false to go on regardless",
        )
    return total


def clip_coefficient(total: torch.Tensor, max_norm: float) -> float:
    """What every gradient is multiplied by: at most 1.0; NaN when the total norm is."""
    return float(torch.clamp(max_norm / (total + 1e-6), max=1.0))


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
