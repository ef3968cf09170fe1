"""The gradient noise scale as a method: measured on-line, of each step of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import convert
from openwafer.training.methods.activation_sparsity import ActivationKeys
from openwafer.training.methods.seam import Method, MethodRun, RunParts
from openwafer.training.methods.sparsity import SparsityKeys
from openwafer.training.metrics import StepMetrics
from openwafer.training.noise_scale import (
    ExampleNorms,
    NoiseEstimate,
    PerExampleNorms,
    SmoothedNoise,
    Watched,
    estimate_noise,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import BatchConfig
from openwafer.training.store.parts import Json
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.execute.micro_batches import Forward

DECAY: Final = 0.95
"""Weight of the steps before in the means of signal and noise: they reach over about 20 steps."""

Squares = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StepNoise:
    """What a step tells of the gradient noise scale.

    Attributes:
        estimate: of this step alone; ``None`` where its gradients were not finite.
        samples: B_simple by smoothed means; ``None`` while their signal is not above 0.
        tokens: B_simple times the tokens of a sample.
    """

    estimate: NoiseEstimate | None
    samples: float | None
    tokens: float | None


class _Examples:
    """The examples' parts of the gradients of normalisation layers, or of all layers."""

    num_small = 1

    def __init__(self, norms: PerExampleNorms) -> None:
        self._norms = norms
        self._by_forward: dict[int, ExampleNorms] = {}

    @property
    def names(self) -> Sequence[str] | None:
        return self._norms.names

    def begin(self) -> None:
        self._by_forward.clear()

    def measured(self, index: int, forward: Forward) -> Forward:
        def run() -> torch.Tensor:
            with self._norms.measuring() as examples:
                self._by_forward[index] = examples
                return forward()

        return run

    def attach(self, execution: Execution) -> None:
        # Ahead of the first forward, which would be seen to change the model.
        self._norms.attach()

    def sum_of_squares(self, names: Iterable[str]) -> float:
        """Of the parts of these parameters' gradients."""
        wanted, found = set(names), list(self._by_forward.values())
        self._norms.require_told(wanted, found)
        return _total(
            squares.sum()
            for examples in found
            for name, squares in examples.by_name.items()
            if name in wanted
        )


class _MicroBatches:
    """The micro-batches' parts of all gradients, whatever layers they come from."""

    names: Sequence[str] | None = None

    def __init__(self, batch: BatchConfig) -> None:
        self.num_small = batch.samples_of_piece
        self._squares: dict[tuple[int, str], torch.Tensor] = {}

    def begin(self) -> None:
        self._squares.clear()

    def measured(self, index: int, forward: Forward) -> Forward:
        return forward

    def attach(self, execution: Execution) -> None:
        execution.watch_micro_batches(self._watch)

    def _watch(self, index: int, name: str, gradient: torch.Tensor) -> None:
        self._squares[index, name] = _square(gradient)

    def sum_of_squares(self, names: Iterable[str]) -> float:
        """Of the parts of all parameters' gradients."""
        return _total(self._squares.values())


class NoiseMeter(MethodRun):
    """Measures signal and noise of each step.

    Args:
        parts: whose gradients are told apart.
        batch: of the run.
        text: what is measured, for the log.

    Attributes:
        last: of the last step; ``None`` before the first.
    """

    saved_as = "noise"

    def __init__(self, parts: _Examples | _MicroBatches, batch: BatchConfig, text: str) -> None:
        self.last: StepNoise | None = None
        self._text = text
        self._parts = parts
        self._num_in_piece = batch.samples_of_piece
        self._num_samples = batch.size
        self._smoothed = SmoothedNoise(DECAY)
        self._names = None if parts.names is None else frozenset(parts.names)
        self._whole: Squares = {}

    def attach(self, execution: Execution) -> None:
        """Watch the gradients of an execution; behind whoever takes a loss scale off them."""
        self._parts.attach(execution)
        execution.watch_gradients(self._watch)

    def describe(self) -> list[str]:
        """See the class that it extends."""
        return [f"gradient noise scale: {self._text}"]

    def forwards(self, forwards: Sequence[Forward]) -> list[Forward]:
        """The forwards of a pass, to be measured."""
        self._whole.clear()
        self._parts.begin()
        self._num_samples = len(forwards) * self._num_in_piece
        return [self._parts.measured(index, forward) for index, forward in enumerate(forwards)]

    def _watch(self, gradients: Mapping[str, torch.Tensor]) -> None:
        for name, gradient in gradients.items():
            if self._names is None or name in self._names:
                self._whole[name] = _square(gradient)

    def end_step(self, scale: float, num_tokens: int) -> None:
        """The gradients of the step are complete.

        Args:
            scale: multiplied the losses; gradients came without it.
            num_tokens: of the step.
        """
        num_small, num_big = self._parts.num_small, self._num_samples
        # What is summed here are parts of the mean over all samples: few samples' own gradients
        # are num_big / num_small times as large, and their squares are averaged over as many.
        parts = self._parts.sum_of_squares(self._whole) / scale**2
        small, whole = parts * num_big / num_small, _total(self._whole.values())
        estimate = None
        if math.isfinite(small) and math.isfinite(whole):
            estimate = estimate_noise(small, whole, num_small=num_small, num_big=num_big)
            self._smoothed.add(estimate)
        samples = self._smoothed.noise_scale
        tokens = None if samples is None else samples * num_tokens / num_big
        self.last = StepNoise(estimate, samples, tokens)

    def record(self, row: StepMetrics) -> StepMetrics:
        """See the class that it extends."""
        noise = self.last
        if noise is None:
            return row
        return replace(
            row,
            noise_scale=noise.samples,
            gradient_signal=None if noise.estimate is None else noise.estimate.signal,
            gradient_noise=None if noise.estimate is None else noise.estimate.noise,
            noise_scale_tokens=noise.tokens,
        )

    def state(self) -> Json:
        """Smoothed signal and noise; empty before the first step."""
        if self._smoothed.signal is None or self._smoothed.noise is None:
            return ()
        return self._smoothed.signal, self._smoothed.noise

    def restore(self, state: Json) -> None:
        """See the class that it extends."""
        known = convert(tuple[float, ...], state)
        if known:
            self._smoothed.signal, self._smoothed.noise = known


def by_examples(model: nn.Module, batch: BatchConfig, watched: Watched) -> NoiseMeter:
    """A meter of each sample's gradients.

    Raises:
        OpenwaferError: ``noise-scale-layers``.
    """
    norms = PerExampleNorms(model, batch.samples_of_piece, watched)
    what = "normalisation layers" if watched is Watched.NORMS else "all layers"
    text = f"gradients of each sample, of {len(norms.names)} parameters of {what}"
    return NoiseMeter(_Examples(norms), batch, text)


def by_micro_batches(batch: BatchConfig) -> NoiseMeter:
    """A meter of the micro-batches' gradients, for a model whose layers do not tell samples."""
    numbers = " to ".join(map(str, sorted({batch.fewest_micro_batches, batch.most_micro_batches})))
    parts = f"{numbers} micro-batches, as the model has other layers than known"
    return NoiseMeter(_MicroBatches(batch), batch, f"all gradients of {parts}")


def _square(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float().square().sum()


def _total(squares: Iterable[torch.Tensor]) -> float:
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in squares:
        by_device.setdefault(each.device, []).append(each)
    return math.fsum(torch.stack(those).double().sum().item() for those in by_device.values())


@dataclass(frozen=True)
class NoiseScaleKeys(ActivationKeys, SparsityKeys):
    """The key of the gradient noise scale.

    Attributes:
        noise_scale: whether to measure it, of the normalisation layers' gradients (``norms``) or of
            ``all``; ``null`` does not.
    """

    noise_scale: Watched | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_scale is None:
            return
        if min(self.batch.sizes.all) < 2:
            raise InvalidFieldError(
                "noise_scale",
                "one sample a step does not tell noise from signal",
                help="set batch.size to 2 or more, or leave noise_scale out",
            )
        is_sparse = self.sparsity is not None or self.activation_sparsity is not None
        if self.noise_scale is Watched.ALL and is_sparse:
            raise InvalidFieldError(
                "noise_scale",
                "products that skip zeros do not tell each sample's gradient of their weights",
                help="set noise_scale: norms",
            )

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found = super().methods()
        return found if self.noise_scale is None else (*found, NoiseScale(self, self.noise_scale))


@dataclass(frozen=True)
class NoiseScale(Method):
    """Measures the gradient noise scale of each step of a run."""

    config: RunConfig
    watched: Watched

    key = "noise_scale"
    not_in_stages = "no stage has the gradients of a sample"

    def begin(self, run: RunParts) -> NoiseMeter:
        """The run's meter.

        Raises:
            OpenwaferError: ``noise-scale-systems``, ``noise-scale-layers``.
        """
        batch, systems = self.config.batch, self.config.systems
        if systems > 1:
            raise error(
                "noise-scale-systems",
                f"each of {systems} systems sees the examples of its own micro-batches alone, "
                "and the noise scale is not gathered from them",
                help="train on one system, or leave noise_scale out",
            )
        try:
            return by_examples(run.model, batch, self.watched)
        except OpenwaferError:
            # Whole micro-batches can be told apart in any model.
            if self.watched is Watched.NORMS or batch.fewest_micro_batches < 2:
                raise
            return by_micro_batches(batch)
