"""Applies the rules of an ordinary torch optimizer to the records of a store."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout
from openwafer.training.store.parameter_store import Loan, ParameterStore
from openwafer.training.store.update_rules import (
    Averaging,
    ParamUpdate,
    StateSpec,
    UpdateRule,
    from_torch,
    state_specs,
    update_parameters,
)


class Updater:
    """Updates parameters by the groups of optimizers, which hold no state themselves.

    Args:
        optimizers: their ``param_groups`` say which parameters are updated, by which rule, with
            which hyper-parameters; schedulers may change them between steps. Several optimizers
            share a model as Muon and AdamW do.
        model: names the parameters.
        average_decay: decay of an exponential moving average of the weights; ``None`` keeps none.
        keeps_masters: whether bf16 weights are updated as fp32 masters, whose 16 low bits the
            store keeps beside the weights that stream.

    Attributes:
        num_updates: updates applied so far, by parameter; counts for the run to save and restore.
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        model: nn.Module,
        *,
        average_decay: float | None = None,
        keeps_masters: bool = False,
    ) -> None:
        self.num_updates: dict[str, int] = {}
        self.optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else optimizers
        self.average_decay = average_decay
        self.keeps_masters = keeps_masters
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._group_of = {
            _name_of(parameter, names): index
            for index, group in enumerate(groups)
            for parameter in group["params"]
        }
        self._first_rules = self.rules()

    def rules(self) -> tuple[UpdateRule, ...]:
        """The rules of all groups with the hyper-parameters of this moment."""
        return tuple(rule for optimizer in self.optimizers for rule in from_torch(optimizer))

    def trains(self, name: str) -> bool:
        """Whether the optimizer has the parameter."""
        return name in self._group_of

    def state_arrays(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[ArraySpec, ...]:
        """Arrays that a parameter needs among its record's states; none for an untrained one."""
        return tuple(
            ArraySpec(state_name(spec.name, name), spec.dtype, spec.shape)
            for spec in self._specs(name, shape, dtype)
        )

    def _specs(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[StateSpec, ...]:
        if name not in self._group_of:
            return ()
        rule = self._first_rules[self._group_of[name]]
        return state_specs(
            rule,
            shape,
            dtype,
            keeps_master=self.keeps_masters and dtype is torch.bfloat16,
            keeps_average=self.average_decay is not None,
        )

    def initialise(self, store: ParameterStore) -> None:
        """Fill the states of a new store that do not start at zero."""
        for record, layout in store.layouts.items():
            fills = dict(self._fills(layout))
            if fills:
                loan = store.borrow(record, (Part.STATES,))
                loan.wait()
                for name, fill in fills.items():
                    loan.tensor(name, Part.STATES).fill_(fill)
                loan.release(dirty=(Part.STATES,))

    def _fills(self, layout: RecordLayout) -> Iterator[tuple[str, float]]:
        for place in layout.parts[Part.WEIGHTS]:
            name = place.spec.name
            for spec in self._specs(name, place.spec.shape, place.spec.dtype):
                if spec.fill:
                    yield state_name(spec.name, name), spec.fill

    def apply(
        self,
        loan: Loan,
        gradients: Mapping[str, torch.Tensor],
        rules: Sequence[UpdateRule],
        coefficient: float,
    ) -> None:
        """Update the parameters of a lent record that have gradients and that the optimizer has.

        Args:
            loan: weights and states, waited for.
            gradients: by parameter name, in host memory; only read.
            rules: by group, as :meth:`rules` gave them at the step.
            coefficient: multiplies the gradients first.
        """
        for name in filter(self.trains, gradients):
            gradient = gradients[name]
            rule = rules[self._group_of[name]]
            count = self.num_updates.get(name, 0)
            update_parameters(
                rule,
                [self._update(loan, name, gradient, count)],
                gradient_scale=coefficient,
                averaging=None
                if self.average_decay is None
                else Averaging(self.average_decay, count),
            )
            self.num_updates[name] = count + 1

    def _update(self, loan: Loan, name: str, gradient: torch.Tensor, count: int) -> ParamUpdate:
        weight = loan.tensor(name, Part.WEIGHTS)
        states = {
            spec.name: loan.tensor(state_name(spec.name, name), Part.STATES)
            for spec in self._specs(name, tuple(weight.shape), weight.dtype)
        }
        return ParamUpdate(weight, gradient.contiguous(), states, count)


def _name_of(parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise error(
            "optimizer-foreign-parameter",
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} "
            "that is not in the model",
            help="build the optimizer over the parameters of the model that is streamed",
        )
    return name


def state_name(state: str, parameter: str) -> str:
    """Name of a parameter's state array in the store."""
    return f"{state}/{parameter}"
