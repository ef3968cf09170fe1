"""The gradient noise scale of a run's steps, on-line."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.noise_scale import (
    ExampleNorms,
    NoiseEstimate,
    PerExampleNorms,
    SmoothedNoise,
    Watched,
    estimate_noise,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.data_config import BatchConfig
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


class NoiseMeter:
    """Measures signal and noise of each step.

    Attributes:
        describes: what is measured, for the log.
        last: of the last step; ``None`` before the first.
    """

    def __init__(
        self, parts: _Examples | _MicroBatches, batch: BatchConfig, describes: str
    ) -> None:
        self.describes = describes
        self.last: StepNoise | None = None
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

    def begin_pass(self, forwards: Sequence[Forward]) -> list[Forward]:
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

    def state(self) -> tuple[float, ...]:
        """Smoothed signal and noise; empty before the first step."""
        if self._smoothed.signal is None or self._smoothed.noise is None:
            return ()
        return self._smoothed.signal, self._smoothed.noise

    def restore(self, state: Sequence[float]) -> None:
        """Go on from what :meth:`state` of another process was."""
        if state:
            self._smoothed.signal, self._smoothed.noise = state


def noise_meter(config: RunConfig, model: nn.Module) -> NoiseMeter | None:
    """What measures a run's noise scale, made before its weights stream; ``None`` without.

    Raises:
        OpenwaferError: ``noise-scale-systems``, ``noise-scale-layers``.
    """
    if config.noise_scale is None:
        return None
    if config.systems > 1:
        raise error(
            "noise-scale-systems",
            f"each of {config.systems} systems sees the examples of its own micro-batches alone, "
            "and the noise scale is not gathered from them",
            help="train on one system, or leave noise_scale out",
        )
    try:
        return _by_examples(config, model, config.noise_scale)
    except OpenwaferError:
        # Whole micro-batches can be told apart in any model.
        if config.noise_scale is Watched.NORMS or config.batch.fewest_micro_batches < 2:
            raise
        batch = config.batch
        numbers = " to ".join(
            map(str, sorted({batch.fewest_micro_batches, batch.most_micro_batches}))
        )
        parts = f"{numbers} micro-batches, as the model has other layers than known"
        return NoiseMeter(_MicroBatches(batch), batch, f"all gradients of {parts}")


def _by_examples(config: RunConfig, model: nn.Module, watched: Watched) -> NoiseMeter:
    batch = config.batch
    norms = PerExampleNorms(model, batch.samples_of_piece, watched)
    what = "normalisation layers" if watched is Watched.NORMS else "all layers"
    text = f"gradients of each sample, of {len(norms.names)} parameters of {what}"
    return NoiseMeter(_Examples(norms), batch, text)


def _square(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float().square().sum()


def _total(squares: Iterable[torch.Tensor]) -> float:
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in squares:
        by_device.setdefault(each.device, []).append(each)
    return math.fsum(torch.stack(those).double().sum().item() for those in by_device.values())
