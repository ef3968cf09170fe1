"""Activation sparsity as a method: linear modules that skip the zeros of their inputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.training.methods.seam import Method, MethodRun, RunParts
from openwafer.training.session.building import make_workload
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import Precision, Weights
from openwafer.training.session.matmul_precision import computes_on
from openwafer.training.sparsity.activation_linear import (
    ActivationChoice,
    ActivationLinear,
    WrittenActivations,
    inputs_of_linears,
    is_replaceable,
    replace_linear,
    slope_at_zero,
)
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.workload import Workload, hollow_copy, placed

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ActivationKeys(RunConfig):
    """The key of activation sparsity.

    Attributes:
        activation_sparsity: ``auto``, or globs of the names of linear modules, whose inputs come
            from a ReLU or the like: where these have many zeros, products skip them, forward and
            backward, on the CPU in fp32. Sums then have another order; ``null`` never does.
    """

    activation_sparsity: WrittenActivations | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_fp32 = self.precision is Precision.FP32 and self.weights is Weights.FP32
        if self.activation_sparsity is not None and not is_fp32:
            raise InvalidFieldError(
                "activation_sparsity",
                f"zeros are skipped in fp32, and here precision is {self.precision} and weights "
                f"are {self.weights}",
                help="leave activation_sparsity out, or set both to fp32",
            )

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found, written = super().methods(), self.activation_sparsity
        return found if written is None else (*found, ActivationSparsity(self, written))


@dataclass(frozen=True)
class ActivationSparsity(Method):
    """Lets products skip the zeros of their inputs."""

    config: RunConfig
    written: WrittenActivations

    key = "activation_sparsity"
    not_in_stages = "it is measured as a whole"

    def shape_forward(self, model: nn.Module, vocab_size: int) -> None:
        """Replace the linear modules that are asked for.

        Raises:
            OpenwaferError: ``activation-sparsity``, ``activation-zeros``.
        """
        device = computes_on(self.config)
        if device != "cpu":
            raise error(
                "activation-sparsity",
                f"activation_sparsity skips zeros on the CPU, and this run computes on {device}",
                help="leave activation_sparsity out, or set streaming.device to cpu",
            )
        skip_zeros_of_inputs(self.written, make_workload(model, self.config, vocab_size))

    def begin(self, run: RunParts) -> MethodRun:
        """See the class that it extends."""
        return _Tallies(run.model)


class _Tallies(MethodRun):
    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def summary(self) -> Iterator[str]:
        return describe_activations(self._model)


def skip_zeros_of_inputs(written: WrittenActivations, workload: Workload) -> None:
    """Replace the linear modules of a workload's model that are asked for.

    Raises:
        OpenwaferError: ``activation-sparsity``, ``activation-zeros``.
    """
    model = workload.model
    sources = faked(lambda mode: _sources(workload, mode))
    able = {name: source for name, source in sources.items() if _is_able(model, name)}
    for name in _chosen(written, able):
        replace_linear(model, name)


def describe_activations(model: nn.Module) -> Iterator[str]:
    """A line for each module that has met inputs in this process."""
    for name, module in model.named_modules():
        if isinstance(module, ActivationLinear) and module.tally.numbers:
            tally = module.tally
            yield (
                f"inputs of {name}: {tally.zeros / tally.numbers:.1%} zeros, "
                f"{tally.skipped / tally.numbers:.1%} of the products skipped"
            )


def _sources(workload: Workload, mode: RememberingFakeMode | None) -> dict[str, str]:
    """By a forward of a copy of the model, whose weights are zero."""
    model = hollow_copy(workload.model, CPU)
    batch = placed(workload.batches[0], mode, CPU)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        return inputs_of_linears(model, lambda: workload.loss_of(model, batch))


def _is_able(model: nn.Module, name: str) -> bool:
    return is_replaceable(model.get_submodule(name))


def _chosen(written: WrittenActivations, sources: Mapping[str, str]) -> list[str]:
    if written is ActivationChoice.AUTO:
        chosen = [name for name, source in sources.items() if not source]
        if not chosen:
            raise _mistake(
                "finds no linear module whose input comes from a ReLU", "leave the key out"
            )
        return chosen
    taken: dict[str, None] = {}
    for glob in written:
        matching = [name for name in sources if fnmatchcase(name, glob)]
        if not matching:
            raise _mistake(
                f"{glob!r} matches no plain linear module of a dense weight that the forward calls",
                did_you_mean(glob, [*sources]),
            )
        taken |= dict.fromkeys(matching)
    for name in taken:
        if sources[name]:
            raise slope_at_zero(name, sources[name])
    return [*taken]


def _mistake(what: str, remedy: str) -> OpenwaferError:
    return error("activation-sparsity", f"activation_sparsity: {what}", help=remedy)
