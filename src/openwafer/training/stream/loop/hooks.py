"""Ties a loop's model and optimizers to the execution that streams their weights."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.optimizer_states import give_states, take_states
from openwafer.training.stream.loop.gradient_ledger import GradientLedger
from openwafer.training.stream.loop.released_parameters import Home, ReleasedParameter, home_of
from openwafer.training.stream.records import has_master, weights_of, write_weight


class LoopHooks:
    """Lets a loop's own calls reach the parameter store, from :meth:`attach` to :meth:`detach`.

    Args:
        model: its parameters are released, their weights in the store.
        execution: streams them.

    Attributes:
        ledger: follows the gradients.
    """

    def __init__(self, model: nn.Module, execution: StreamedExecution) -> None:
        self._model = model
        self._execution = execution
        self._parameters = dict(model.named_parameters())
        self._name_of = {id(parameter): name for name, parameter in self._parameters.items()}
        self._frozen = [name for name, p in self._parameters.items() if not p.requires_grad]
        self._saving: nn.Module | None = None
        self._undo = ExitStack()
        self._names = {
            optimizer: [self._name_of[id(parameter)] for parameter in _parameters_of(optimizer)]
            for optimizer in execution.updater.optimizers
        }
        self.ledger = GradientLedger(execution, self._names)

    def attach(self) -> None:
        """Take the optimizers' states into the store, and let the loop's calls reach it.

        Raises:
            OpenwaferError: ``optimizer-state-mismatch``; what is done until then can be undone by
                :meth:`detach` and :meth:`give_back`.
        """
        for optimizer in self._names:
            self._take_states(optimizer)
            self._attach_optimizer(optimizer)
        self._attach_model()
        self._release_parameters()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copied(self._model)

    def detach(self) -> None:
        """Take every hook off; the parameters are ordinary ones, without weights."""
        self._execution.executor.weights.own_classes()
        for parameter in self._parameters.values():
            home_of(parameter, None)
        self._undo.close()

    def give_back(self) -> None:
        """Copy weights and optimizer states out of the store, for a loop that goes on plainly."""
        store, updater = self._execution.store, self._execution.updater
        for name, weight in weights_of(store):
            self._parameters[name].data = weight.clone()
        owners = {name: optimizer for optimizer, held in self._names.items() for name in held}
        for name, state in give_states(store, updater):
            owners[name].state[self._parameters[name]] = state

    # Parameters.

    def _release_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            home = Home(
                name,
                self._write,
                self.ledger.check_read,
                self.ledger.forget,
                lambda: self._saving is not None,
            )
            home_of(parameter, home)
        self._execution.executor.weights.release_as(ReleasedParameter)

    def _write(self, name: str, value: torch.Tensor) -> None:
        self._execution.settle()
        store, record = self._execution.store, self._execution.executor.split.record_of[name]
        keeps_master = has_master(store.layouts[record], name)
        changed = KEPT_PARTS if keeps_master else (Part.WEIGHTS,)
        with store.lent(record, changed) as loan, torch.no_grad():
            write_weight(loan, name, value, keeps_master=keeps_master)

    # The model.

    def _attach_model(self) -> None:
        self._undo.callback(self._model.register_forward_pre_hook(self._check_frozen).remove)
        self._replace(self._model, "zero_grad", partial(self._zero_grad, None))
        for module in self._model.modules():
            for handle in (
                module.register_state_dict_pre_hook(self._begin_saving),
                # torch marks this hook with an attribute, which a bound method does not take.
                module.register_state_dict_post_hook(partial(self._fill_state_dict)),
                module.register_load_state_dict_pre_hook(_refuse_assignment),
            ):
                self._undo.callback(handle.remove)

    def _check_frozen(self, _model: nn.Module, _args: object) -> None:
        for name in self._frozen:
            if self._parameters[name].requires_grad:
                raise error(
                    "parameter-unfrozen",
                    f"{name!r} requires a gradient now and did not when the run was planned, so "
                    "that there is no room for one",
                    help="call streamed.close(), unfreeze, and stream the model anew",
                )

    def _begin_saving(self, module: nn.Module, _prefix: str, _keeps_vars: bool) -> None:
        if self._saving is None or module is self._model:
            self._saving = module

    def _fill_state_dict(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object
    ) -> None:
        if module is not self._saving:
            return
        self._execution.settle()
        names: dict[int, list[str]] = {}
        for alias, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(prefix + alias)
        for name, weight in weights_of(self._execution.store):
            wanted = [key for key in names.get(id(self._parameters[name]), ()) if key in state]
            state.update(dict.fromkeys(wanted, weight.clone()) if wanted else {})
        self._saving = None

    # Optimizers.

    def _attach_optimizer(self, optimizer: Optimizer) -> None:
        for handle in (
            optimizer.register_step_post_hook(self._end_step),
            optimizer.register_state_dict_post_hook(self._fill_optimizer_state),
            optimizer.register_load_state_dict_post_hook(self._take_states),
        ):
            self._undo.callback(handle.remove)
        self._replace(optimizer, "zero_grad", partial(self._zero_grad, optimizer))

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        setattr(owner, name, function)
        self._undo.callback(owner.__dict__.pop, name, None)

    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        self.ledger.zero(optimizer, leaves_zeros=not set_to_none)
        owner = self._model if optimizer is None else optimizer
        type(owner).zero_grad(owner)  # type: ignore[arg-type]

    def begin_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self._execution.end_open_pass()
        self.ledger.step(optimizer)
        self.ledger.is_stepping = True

    def _end_step(self, optimizer: Optimizer, *_: object) -> None:
        if not is_in_own_step(optimizer):
            self.ledger.is_stepping = False

    def _fill_optimizer_state(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._execution.settle()
        order = {name: index for index, name in enumerate(self._names[optimizer])}
        for name, state in give_states(self._execution.store, self._execution.updater):
            if name in order:
                state_dict["state"][order[name]] = state

    def _take_states(self, optimizer: Optimizer) -> None:
        self._execution.settle()
        counts = self._execution.updater.counts.num_updates
        states = {
            name: optimizer.state.get(self._parameters[name], {}) for name in self._names[optimizer]
        }
        begun = {name: state for name, state in states.items() if state or counts.get(name)}
        take_states(self._execution.store, self._execution.updater, begun)
        optimizer.state.clear()


def is_in_own_step(optimizer: Optimizer) -> bool:
    """Whether the step whose hook asks was called by an overridden step of the same optimizer.

    torch calls the hooks again where a subclass calls ``super().step()``. The stack knows that also
    after a step that has raised, of which no hook tells the end.
    """
    hooked = type(optimizer).step.__code__
    steps, frame = 0, inspect.currentframe()
    while frame is not None and steps < 2:
        steps += frame.f_code is hooked and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps == 2


def copied(model: nn.Module) -> OpenwaferError:
    """The error of who copies or pickles a model that is streamed."""
    return error(
        "streamed-model-copied",
        f"this {type(model).__name__} is streamed, and the store of its weights cannot be copied "
        "or pickled with it",
        help="copy the model before stream_weights; save model.state_dict()",
    )


def _parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _refuse_assignment(
    _module: nn.Module,
    _state: object,
    _prefix: str,
    metadata: Mapping[str, object],
    *_: object,
) -> None:
    if metadata.get("assign_to_params_buffers"):
        raise error(
            "weights-assigned",
            "load_state_dict(assign=True) would put other parameters in the place of those whose "
            "weights are streamed",
            help="load with assign=False, which copies into the parameter store",
        )
