"""Stands in for what a loop calls on its model and its optimizers, on rank 0 and on the others."""

import inspect
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.loop_systems import (
    BegunLoop,
    GradientsElsewhere,
    LoopHome,
    LoopSystems,
    WeightsElsewhere,
    store_folder,
)
from openwafer.training.frontends.loop.model_checks import (
    apply_in_place,
    check_frozen,
    check_gradient_hooks,
    check_in_place,
    check_transforms,
    copied,
    refuse_assignment,
    refuse_group,
    refuse_resizing,
)
from openwafer.training.frontends.loop.parameters import (
    GradientsHome,
    Home,
    ReleasedParameter,
    StoredTensor,
    WeightsHome,
)
from openwafer.training.frontends.loop.stored_states import StoredState, StoredStates
from openwafer.training.frontends.loop.values import StoredGradients, StoredWeights
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.stream.assemble import execute_by
from openwafer.training.stream.execute.execution import StepContext, StreamedExecution
from openwafer.training.stream.execute.passes import PassObserver
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import lay_out_records, weights_of
from openwafer.training.stream.step_plan import StepPlan
from openwafer.training.systems.owner import LoopOwner
from openwafer.training.torch_private import register_first_post_hook, step_pre_hooks


class NoStates(defaultdict[Any, Any]):
    """What an optimizer's own step finds, which has no gradients to use states with."""


class LastHook:
    """A hook that runs before an optimizer's step, behind those that are registered after it.

    A hook behind it that raised would leave a step that was taken, and is taken again by a loop
    that catches the exception.
    """

    def __init__(self, optimizer: Optimizer, hook: Callable[..., Any]) -> None:
        self._optimizer, self._hook = optimizer, hook
        self._handle = optimizer.register_step_pre_hook(hook)
        vars(optimizer)["register_step_pre_hook"] = self._register

    def _register(self, hook: Callable[..., Any]) -> RemovableHandle:
        self._handle.remove()
        registered = type(self._optimizer).register_step_pre_hook(self._optimizer, hook)
        self._handle = type(self._optimizer).register_step_pre_hook(self._optimizer, self._hook)
        return registered

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()
        vars(self._optimizer).pop("register_step_pre_hook", None)


def check_last(optimizer: Optimizer, hook: Callable[..., Any]) -> None:
    """Refuse a step where another hook runs behind this one, in spite of :class:`LastHook`."""
    hooks = step_pre_hooks(optimizer)
    behind = hooks[hooks.index(hook) + 1 :]
    if behind:
        named = getattr(behind[0], "__qualname__", behind[0])
        raise error(
            "step-hook-behind",
            f"the hook {named} is to run before the step of {type(optimizer).__name__}, and was "
            "registered in a way that puts it behind the hook that takes the step",
            help="register it by optimizer.register_step_pre_hook(hook), not by the class",
        )


class ModelHooks(PassObserver, ABC):
    """Stands in for calls that a loop makes of its model and its optimizers, until it is undone.

    Args:
        model: its parameters are released.
        optimizers: over them.
        execution: streams the model.

    Attributes:
        weights, gradients: what the loop finds in parameters.
        execution: see above.
    """

    weights: WeightsHome
    gradients: GradientsHome

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], execution: StreamedExecution
    ) -> None:
        # Not at exit, where the threads end by themselves.
        weakref.finalize(self, execution.store.abandon).atexit = False
        self.execution = execution
        self._executor = execution.executor
        self._model = model
        self._parameters = dict(model.named_parameters())
        self._name_of = {id(parameter): name for name, parameter in self._parameters.items()}
        self._frozen = [(n, p) for n, p in self._parameters.items() if not p.requires_grad]
        self._undo = ExitStack()
        self._names = {
            optimizer: [self._name_of[id(parameter)] for parameter in parameters_of(optimizer)]
            for optimizer in optimizers
        }

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copied(self._model)

    def begin_pass(self) -> None:
        check_transforms()
        self._check_in_place()

    def _check_in_place(self) -> None:
        check_in_place(self._parameters.items(), ReleasedParameter)

    def _attach(self) -> None:
        for optimizer in self._names:
            self._take_states(optimizer)
            for handle in self._hooks_on(optimizer):
                self._undo.callback(handle.remove)
            self._replace(optimizer, "zero_grad", partial(self._zero_grad, optimizer))
            self._replace(optimizer, "add_param_group", partial(refuse_group, optimizer))
        checking = self._model.register_forward_pre_hook(lambda *_: check_frozen(self._frozen))
        self._undo.callback(checking.remove)
        self._replace(self._model, "zero_grad", partial(self._zero_grad, None))
        self._replace(self._model, "_apply", partial(apply_in_place, self._model))
        for module in self._model.modules():
            if hasattr(type(module), "resize_token_embeddings"):
                refusal = partial(refuse_resizing, module)
                self._replace(module, "resize_token_embeddings", refusal)
            self._undo.callback(module.register_load_state_dict_pre_hook(refuse_assignment).remove)
            for handle in self._hooks_of(module):
                self._undo.callback(handle.remove)
        error_of_copies = partial(copied, self._model)
        for name, parameter in self._parameters.items():
            home = Home(name, self.weights, self.gradients, error_of_copies)
            vars(parameter)["home"] = home
        self._executor.weights.release_as(ReleasedParameter)
        self._executor.observe(self)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        setattr(owner, name, function)
        self._undo.callback(owner.__dict__.pop, name, None)

    def _hide(self, optimizer: Optimizer) -> None:
        """Let the optimizer's own step, which comes now, find nothing to do."""
        self.gradients.looks_empty = True
        optimizer.state = NoStates(dict)

    def _end_step(self, optimizer: Optimizer, *_: object) -> None:
        if not is_in_own_step(optimizer):
            self.gradients.looks_empty = False
            self._take_states(optimizer)

    @abstractmethod
    def begin_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    @abstractmethod
    def close(self, *, is_alone: bool) -> None:
        """End the stream, and close the store however it goes.

        Args:
            is_alone: whether other systems may be lost, which have records perhaps.
        """

    @abstractmethod
    def _take_states(self, optimizer: Optimizer) -> None:
        """Put what the loop is to find there into ``optimizer.state``."""

    @abstractmethod
    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        """``zero_grad`` of an optimizer, or of the model."""

    @abstractmethod
    def _hooks_of(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """Register what else runs where a module saves or loads."""

    @abstractmethod
    def _hooks_on(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        """Register what runs where an optimizer steps, saves or loads."""


class LoopHooks(ModelHooks):
    """Lets a loop's own calls reach the parameter store, from :meth:`attach` to :meth:`close`.

    Args:
        model: its parameters are released, their weights in the store.
        execution: streams them.
        systems: those that run the loop, where there are several; this one leads.

    Attributes:
        records: of the model, in the store of this system or of several.
    """

    weights: StoredWeights
    gradients: StoredGradients

    def __init__(
        self, model: nn.Module, execution: StreamedExecution, systems: LoopSystems | None = None
    ) -> None:
        super().__init__(model, execution.updater.optimizers, execution)
        self._systems = systems
        self.records = LoopRecords(execution, None if systems is None else systems.owners)
        self.weights = StoredWeights(execution, self.records, self._parameters)
        self.gradients = StoredGradients(
            execution, self.records, self._parameters, self._names, systems
        )
        self._states = {optimizer: self._states_of(held) for optimizer, held in self._names.items()}

    def _states_of(self, names: Iterable[str]) -> StoredStates:
        held = {name: self._parameters[name] for name in names}
        return StoredStates(self.execution.updater, self.records, held)

    def attach(self) -> None:
        """Take the optimizers' states into the store, and let the loop's calls reach it.

        Raises:
            OpenwaferError: ``optimizer-state-mismatch``; the loop is then as it was.
        """
        execution, systems = self.execution, self._systems
        try:
            self._attach()
        except OpenwaferError:
            self.close(is_alone=False)
            raise
        if systems is not None:
            # In a pass of all systems none of them waits for what rank 0 may want of it.
            on_forward, plan = self.weights.take, lambda: execution.plan
            systems.attach(self._executor, self._tell_names, on_forward, plan)

    def _tell_names(self) -> None:
        """Let all systems know which parameters have a gradient."""

        def names(kept: Iterable[Mapping[str, Sequence[str]]]) -> set[str]:
            if self.records.are_elsewhere:
                self.records.note_kept(kept)
                self.gradients.note(self.records.kept_elsewhere.names)
            return self.gradients.names

        assert self._systems is not None
        self._systems.names_with_gradients(names=names)

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether a parameter of an optimizer has a gradient."""
        return not self.gradients.names.isdisjoint(self._names[optimizer])

    def settled(self) -> LoopRecords:
        """The records, up to date between two steps with what the loop has written to."""
        self.records.settle()
        self.weights.take()
        self.gradients.take()
        for states in self._states.values():
            states.take()
        return self.records

    def close(self, *, is_alone: bool) -> None:
        """See :class:`ModelHooks`. Weights and states go back, unless they are lost elsewhere."""
        is_lost = is_alone and self.records.are_elsewhere
        with closing(self.execution.store):
            gradients: dict[str, torch.Tensor] = {}
            try:
                if not is_lost:
                    self.settled()
                    gradients |= self.gradients.all()
            finally:
                self.execution.close()
                self._detach()
            if not is_lost:
                self._give_back(gradients)

    def _detach(self) -> None:
        """Make the parameters ordinary ones, without weights."""
        self._executor.weights.own_classes()
        for parameter in self._parameters.values():
            vars(parameter).pop("home", None)
        self._undo.close()
        for optimizer, states in self._states.items():
            if isinstance(optimizer.state, StoredStates):
                optimizer.state = defaultdict(dict, states.others)

    def _give_back(self, gradients: Mapping[str, torch.Tensor]) -> None:
        for name, weight in weights_of(self.records):
            self._parameters[name].data = self.weights.in_parameter(name, weight)
        for name, gradient in gradients.items():
            self._parameters[name].grad = gradient
        for optimizer, states in self._states.items():
            for name, state in states.given():
                optimizer.state[self._parameters[name]] = state
            states.end(optimizer.state)
        self.weights.end()
        self.gradients.end()

    # Passes.

    def begin_pass(self) -> None:
        super().begin_pass()
        if self._systems is None:
            self.weights.take()

    def begin_backward(self) -> None:
        systems = self._systems
        with nullcontext() if systems is None else systems.beginning_backward(self._executor):
            self.gradients.begin_backward()

    # The model.

    def _hooks_of(self, module: nn.Module) -> Iterator[RemovableHandle]:
        if self.execution.device.torch_device.type != "cpu":
            # What saves a state_dict asks for the memory of all weights, which is the host's.
            yield module.register_state_dict_post_hook(partial(self._save_on_host))

    def _save_on_host(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object
    ) -> None:
        for alias, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            saved = state.get(prefix + alias)
            if isinstance(saved, StoredTensor) and id(parameter) in self._name_of:
                host = self.weights.get(self._name_of[id(parameter)], torch.device("cpu"))
                state[prefix + alias] = host.whole()

    # Optimizers.

    def _hooks_on(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        # A hook of the loop's own is to find states and gradients.
        yield register_first_post_hook(optimizer, self._end_step)
        yield optimizer.register_state_dict_pre_hook(self._begin_saving_states)
        yield optimizer.register_state_dict_post_hook(_fill_optimizer_state)
        yield optimizer.register_load_state_dict_post_hook(self._take_states)

    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        self.gradients.zero(optimizer, set_to_none=set_to_none)
        owner = self._model if optimizer is None else optimizer
        self.gradients.looks_empty = True
        try:
            type(owner).zero_grad(owner)  # type: ignore[arg-type]
        finally:
            self.gradients.looks_empty = False

    def begin_step(self, optimizer: Optimizer) -> None:
        systems = self._systems
        with nullcontext() if systems is None else systems.stepping():
            self.execution.end_open_pass()
            self._check_in_place()
            self.execution.updater.read(optimizer)
        if systems is None:
            self._step(optimizer)
        else:
            systems.step(partial(self._step, optimizer))
        self._hide(optimizer)

    def _step(self, optimizer: Optimizer) -> None:
        self._take_states(optimizer)
        self._states[optimizer].take()
        self.weights.take()
        self.gradients.take()
        if not self._is_overflown(optimizer):
            self.gradients.step(optimizer, _number(optimizer, "grad_scale", 1.0))
            self.weights.give()
            self._states[optimizer].give()

    def _is_overflown(self, optimizer: Optimizer) -> bool:
        """Whether a ``GradScaler`` has told a fused optimizer to leave this step out."""
        is_overflown = _number(optimizer, "found_inf", 0.0) != 0.0
        if is_overflown and len(self._names) > 1:
            raise error(
                "optimizers-apart",
                f"a GradScaler leaves out the step of one of {len(self._names)} optimizers, and a "
                "step is taken by all of them or by none",
                help="call scaler.unscale_ for each optimizer, and step them all or none",
            )
        return is_overflown

    def _begin_saving_states(self, optimizer: Optimizer) -> None:
        self.weights.take()
        self._take_states(optimizer)

    def _take_states(self, optimizer: Optimizer) -> None:
        """If the loop has given it other states, the store takes those."""
        given = optimizer.state
        if not isinstance(given, StoredStates):
            if not isinstance(given, NoStates):
                self._states[optimizer].take_all(given)
            optimizer.state = self._states[optimizer]  # type: ignore[assignment]


def _fill_optimizer_state(_optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    # What is pickled with classes of ours could not be loaded as weights only.
    state_dict["state"] = {
        key: dict(value) if isinstance(value, StoredState) else value
        for key, value in state_dict["state"].items()
    }


def _number(optimizer: Optimizer, name: str, default: float) -> float:
    """What a ``GradScaler`` has set on a fused optimizer for the time of its step."""
    value = vars(optimizer).get(name)
    return default if value is None else float(value)


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


class StatesElsewhere(defaultdict[Any, Any]):
    """``optimizer.state`` of a system that has none.

    Args:
        elsewhere: the error of who asks for one.
    """

    def __init__(self, elsewhere: Callable[[], OpenwaferError]) -> None:
        super().__init__()
        self._elsewhere = elsewhere

    def __missing__(self, _key: object) -> NoReturn:
        raise self._elsewhere()


class FollowedHooks(ModelHooks):
    """Lets a loop's own calls reach the store of rank 0, or those of all, from another rank.

    Forward and backward are a rank's own, with weights that come and gradients that go. What the
    loop reads of gradients comes from rank 0, when all systems read it. The writes of rank 0 count:
    those of this rank's program are dropped, as it is the same program. The records that this rank
    owns it updates when rank 0 says so, and by its rules.

    Args:
        model: its parameters give up their memory.
        optimizers: over them.
        systems: those of the loop.
        begun: the loop as rank 0 has planned it.
        home: where this system's own records are.

    Raises:
        OpenwaferError: ``systems-states`` where the optimizers keep other states than on rank 0; as
            the store does.
    """

    weights: WeightsElsewhere
    gradients: GradientsElsewhere

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        systems: LoopSystems,
        begun: BegunLoop,
        home: LoopHome,
    ) -> None:
        check_gradient_hooks(dict(model.named_parameters()))
        execution = _followed(model, optimizers, systems, begun, home)
        super().__init__(model, optimizers, execution)
        self._systems = systems
        likes = _likes_of(begun.contract.plan)
        self.weights = WeightsElsewhere(systems, likes)
        self.gradients = GradientsElsewhere(systems, likes, keeps_masters=home.keeps_masters)
        self._owner = LoopOwner(execution, systems.control.group)
        systems.control.answer = self._owner.answer
        self._attach()
        systems.attach(self._executor, self._take_names)

    def _take_names(self) -> None:
        self.gradients.names = self._systems.names_with_gradients(self._owner.kept)

    def begin_backward(self) -> None:
        with self._systems.beginning_backward(self._executor):
            # Gradients that arrive are of the next step: those of the last must be gone.
            self.execution.flush()

    def elsewhere(self, what: str) -> OpenwaferError:
        """The error of who asks for something here that rank 0 has."""
        return self._systems.elsewhere(what)

    def _refuse(self, what: str) -> NoReturn:
        raise self.elsewhere(what)

    # The model.

    def _hooks_of(self, module: nn.Module) -> Iterator[RemovableHandle]:
        yield module.register_state_dict_pre_hook(lambda *_: self._refuse("model.state_dict()"))

    # Optimizers.

    def _hooks_on(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        yield register_first_post_hook(optimizer, self._end_step)
        yield optimizer.register_state_dict_pre_hook(
            lambda _: self._refuse("optimizer.state_dict()")
        )
        yield optimizer.register_load_state_dict_post_hook(self._take_states)

    def _take_states(self, optimizer: Optimizer) -> None:
        optimizer.state = StatesElsewhere(partial(self.elsewhere, "optimizer.state"))

    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        if set_to_none:
            names = self.gradients.names if optimizer is None else self._names[optimizer]
            self.gradients.leave(names)

    def begin_step(self, optimizer: Optimizer) -> None:
        with self._systems.stepping():
            self.execution.end_open_pass()
            self._check_in_place()
        self._systems.step()
        self._hide(optimizer)

    def close(self, *, is_alone: bool) -> None:
        """See :class:`ModelHooks`. Rank 0 has the weights, or nobody."""
        self._owner.close()
        self._undo.close()
        for optimizer in self._names:
            optimizer.state = defaultdict(dict)


def _followed(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    systems: LoopSystems,
    begun: BegunLoop,
    home: LoopHome,
) -> StreamedExecution:
    """What runs the model on a system that does not lead, over the records that it owns."""
    contract = begun.contract
    plan, share = contract.plan, contract.share(systems.rank)
    updater = Updater(optimizers, model, keeps_masters=home.keeps_masters)
    own = lay_out_records(
        plan.split,
        parameters=dict(model.named_parameters()),
        state_arrays=updater.state_arrays,
        keeps_gradients=True,
    )
    for record, layout in share.layouts.items():
        if own[record] != layout:
            raise error(
                "systems-states",
                f"the optimizer keeps other states of {record!r} on {systems.here} than on rank 0",
                help="build the same optimizers in all processes",
            )
    context = StepContext(updater, home.given.make_device(), replicas=systems.replicas)
    store = share.create(store_folder(home.folder, systems.rank), home.given.options.store)
    with closed_on_error(store):
        execution = execute_by(contract, model, store, context)
        assert isinstance(execution, StreamedExecution)
        return execution


def _likes_of(plan: StepPlan) -> dict[str, torch.Tensor]:
    """The weights of a plan, on the meta device."""
    return {
        place.spec.name: place.spec.empty("meta")
        for layout in plan.layouts.values()
        for place in layout.parts[Part.WEIGHTS]
    }
