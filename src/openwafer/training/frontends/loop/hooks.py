"""Stands in for what a loop calls on its model and its optimizers, on rank 0 and on the others."""

import inspect
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.loop_records import LoopRecords
from openwafer.training.frontends.loop.loop_systems import (
    BegunLoop,
    LoopHome,
    LoopSystems,
    follow,
    refuse_other_gradient,
    store_folder,
)
from openwafer.training.frontends.loop.model_checks import (
    apply_in_place,
    check_frozen,
    check_gradient_hooks,
    check_in_place,
    check_transforms,
    copied,
    parameters_of,
    refuse_assignment,
    refuse_group,
)
from openwafer.training.frontends.loop.parameters import (
    Backing,
    Home,
    ReleasedParameter,
    StoredTensor,
    Values,
    home_of,
)
from openwafer.training.frontends.loop.stored_states import StoredState, StoredStates
from openwafer.training.frontends.loop.values import GradientLedger, StoredValues
from openwafer.training.step import clip
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.stream.execute.execution import (
    StepContext,
    StreamedExecution,
    without_records,
)
from openwafer.training.stream.execute.passes import PassObserver
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import lay_out_records, weights_of
from openwafer.training.stream.replicas.loop_link import LoopLink
from openwafer.training.stream.replicas.ownership import StoreShare
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.step_plan import StepPlan
from openwafer.training.systems.owner import Owner
from openwafer.training.torch_private import execution_engine, graph_task_id, step_pre_hooks


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
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
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
        """See :class:`PassObserver`."""
        check_transforms()
        self._check_in_place()

    def _check_in_place(self) -> None:
        check_in_place(self._parameters.items(), ReleasedParameter)

    def _attach_model(self) -> None:
        checking = self._model.register_forward_pre_hook(lambda *_: check_frozen(self._frozen))
        self._undo.callback(checking.remove)
        self._replace(self._model, "zero_grad", partial(self._zero_grad, None))
        self._replace(self._model, "_apply", self._apply)
        for module in self._model.modules():
            self._undo.callback(module.register_load_state_dict_pre_hook(refuse_assignment).remove)
            for handle in self._hooks_of(module):
                self._undo.callback(handle.remove)

    def _attach_optimizer(self, optimizer: Optimizer) -> None:
        for handle in self._hooks_on(optimizer):
            self._undo.callback(handle.remove)
        self._replace(optimizer, "zero_grad", partial(self._zero_grad, optimizer))
        self._replace(optimizer, "add_param_group", partial(refuse_group, optimizer))

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        setattr(owner, name, function)
        self._undo.callback(owner.__dict__.pop, name, None)

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """``model.to(...)`` and the like; refused before it has changed anything."""
        return apply_in_place(self._model, function, recurse=recurse)

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
    """Lets a loop's own calls reach the parameter store, from :meth:`attach` to :meth:`detach`.

    Args:
        model: its parameters are released, their weights in the store.
        execution: streams them.
        systems: those that run the loop, where there are several; this one leads.

    Attributes:
        records: of the model, in the store of this system or of several.
        ledger: follows the gradients.
        values: what the loop finds in parameters.
    """

    def __init__(
        self, model: nn.Module, execution: StreamedExecution, systems: LoopSystems | None = None
    ) -> None:
        super().__init__(model, execution.updater.optimizers)
        self._systems = systems
        self._execution = execution
        self.records = LoopRecords(execution, None if systems is None else systems.owners)
        self.ledger = GradientLedger(execution, self.records, self._names)
        self.values = StoredValues(execution, self.records, self._parameters, self.ledger)
        if systems is not None:
            self.values.shown = systems.shown
        self._states = {optimizer: self._states_of(held) for optimizer, held in self._names.items()}

    def _states_of(self, names: Iterable[str]) -> StoredStates:
        held = {name: self._parameters[name] for name in names}
        return StoredStates(self._execution, self.records, held)

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
        self._execution.executor.observe(self)
        if self._systems is not None:
            self._systems.lead(self._execution, self.records, self.ledger)
            # In a pass of all systems none of them waits for what rank 0 may want of it.
            self._systems.on_forward = self.values.take_weights

    def settle(self) -> None:
        """Bring the store up to date between two steps, with what the loop has written to."""
        self.records.settle()
        self.values.take_weights()
        self.values.take_gradients()

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and gradients: what the loop gave for them, or copies."""
        self.values.take_gradients()
        for name, gradient in self.ledger.gradients():
            held = self.values.held_gradient(name)
            yield name, gradient if held is None else held

    def detach(self) -> None:
        """Take every hook off; the parameters are ordinary ones, without weights."""
        self._execution.executor.weights.own_classes()
        for parameter in self._parameters.values():
            home_of(parameter, None)
        self._undo.close()
        for optimizer, states in self._states.items():
            if isinstance(optimizer.state, StoredStates):
                optimizer.state = defaultdict(dict, states.others)

    def give_back(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Copy weights and states out of the store, for a loop that goes on plainly.

        Args:
            gradients: those of a step that was not taken.
        """
        for name, weight in weights_of(self.records):
            self._parameters[name].data = self.values.given_memory(name, weight)
        for name, gradient in gradients.items():
            self._parameters[name].grad = gradient
        for optimizer, states in self._states.items():
            for name, state in states.given():
                optimizer.state[self._parameters[name]] = state
            states.end(optimizer.state)
        self.values.end()

    # Parameters.

    def _note_differentiated(self, name: str) -> None:
        self._execution.executor.log.unplanned.append(name)

    def begin_pass(self) -> None:
        """See :class:`PassObserver`."""
        super().begin_pass()
        if self._systems is None:
            self.values.take_weights()

    def begin_backward(self) -> None:
        """See :class:`PassObserver`."""
        systems, executor = self._systems, self._execution.executor
        with nullcontext() if systems is None else systems.beginning_backward(executor):
            self.values.take_gradients()
            self.ledger.begin_backward()
            execution_engine.queue_callback(self.values.give_gradients)

    def _release_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            home = Home(
                name,
                self.values.weights,
                self.values.write_weights,
                self.values.replace_weights,
                self.values.gradient,
                self.values.set_gradient if self._systems is None else self._set_gradient,
                self._note_differentiated,
                partial(copied, self._model),
            )
            home_of(parameter, home)
        self._execution.executor.weights.release_as(ReleasedParameter)

    def _set_gradient(self, name: str, gradient: torch.Tensor | None) -> None:
        refuse_other_gradient(name, gradient)
        self.values.set_gradient(name, gradient)

    # The model.

    def _hooks_of(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """See :class:`ModelHooks`."""
        if self._execution.device.torch_device.type != "cpu":
            # What saves a state_dict asks for the memory of all weights, which is the host's.
            yield module.register_state_dict_post_hook(partial(self._save_on_host))

    def _save_on_host(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object
    ) -> None:
        for alias, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            saved = state.get(prefix + alias)
            if isinstance(saved, StoredTensor) and id(parameter) in self._name_of:
                host = self.values.weights(self._name_of[id(parameter)], torch.device("cpu"))
                state[prefix + alias] = host.whole()

    # Optimizers.

    def _hooks_on(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        """See :class:`ModelHooks`."""
        yield optimizer.register_step_post_hook(self._end_step)
        yield optimizer.register_state_dict_pre_hook(self._begin_saving_states)
        yield optimizer.register_state_dict_post_hook(_fill_optimizer_state)
        yield optimizer.register_load_state_dict_post_hook(self._take_states)

    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        self.ledger.collect()
        names = self.ledger.zeroed_by(optimizer)
        if set_to_none:
            self.values.leave_gradients(names)
        else:
            self.values.zero_gradients(names)
        self.ledger.zero(names, leaves_zeros=not set_to_none)
        owner = self._model if optimizer is None else optimizer
        self.ledger.looks_empty = True
        try:
            type(owner).zero_grad(owner)  # type: ignore[arg-type]
        finally:
            self.ledger.looks_empty = False

    def clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip the gradients of this step; see :meth:`StreamedLoop.clip_grad_norm_`."""
        ledger = self.ledger
        ledger.refuse_second_clip()
        ledger.fill_zeros()
        self._execution.end_open_pass()
        self.values.take_gradients()
        norms = ledger.norms(norm_type)
        found = clip(
            norms, self._parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )
        ledger.multiply(norms, found.coefficient)
        self.values.give_gradients()
        return found.norm

    def begin_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        with nullcontext() if self._systems is None else self._systems.stepping():
            self._execution.end_open_pass()
            self._check_in_place()
            self._execution.updater.read(optimizer)
        if self._systems is None:
            self._step(optimizer)
        else:
            self._systems.step(partial(self._step, optimizer))
        self.ledger.looks_empty = True
        optimizer.state = NoStates(dict)

    def _step(self, optimizer: Optimizer) -> None:
        self._take_states(optimizer)
        self.values.take_weights()
        self.values.take_gradients()
        if not self._is_overflown(optimizer):
            self.ledger.unscale(optimizer, _number(optimizer, "grad_scale", 1.0))
            self.ledger.step(optimizer)
            self.values.give_weights()

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

    def _end_step(self, optimizer: Optimizer, *_: object) -> None:
        if not is_in_own_step(optimizer):
            self.ledger.looks_empty = False
            self._take_states(optimizer)

    def _begin_saving_states(self, optimizer: Optimizer) -> None:
        self.values.take_weights()
        self._take_states(optimizer)

    def _take_states(self, optimizer: Optimizer) -> None:
        """Let the optimizer's states be in the store, if the loop has given it others, those."""
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


class FollowedGradients:
    """What a loop finds in ``parameter.grad`` on a system without the store.

    Args:
        systems: those of the loop.
        likes: of the weights by name, on the meta device.
        keeps_masters: whether the store updates fp32 masters, so that no factor can wait.

    Attributes:
        names: parameters that have a gradient.
        looks_empty: whether code runs that is to find none, as an optimizer's step.
    """

    def __init__(
        self, systems: LoopSystems, likes: Mapping[str, torch.Tensor], *, keeps_masters: bool
    ) -> None:
        self.names: set[str] = set()
        self.looks_empty = False
        self._systems = systems
        self._likes = likes
        self._keeps_masters = keeps_masters
        # What somebody holds.
        self._held: WeakValueDictionary[str, Backing] = WeakValueDictionary()

    def get(self, name: str) -> StoredTensor | None:
        """``parameter.grad``."""
        if graph_task_id() != -1:
            raise self._systems.elsewhere(f"the gradient of {name!r}, while backward runs,")
        if self.looks_empty or name not in self.names:
            return None
        backing = self._held.get(name)
        if backing is None:
            values = Values(
                partial(self._read, name),
                lambda value: None,
                lambda factor: not self._keeps_masters,
            )
            what, like = f"the gradient of {name!r}", self._likes[name]
            backing = Backing(what, like, torch.device("cpu"), values)
            self._held[name] = backing
        return backing.whole()

    def _read(self, name: str) -> torch.Tensor:
        return self._systems.shown(name, torch.empty_like(self._likes[name], device="cpu"))

    def put(self, name: str, gradient: torch.Tensor | None) -> None:
        """``parameter.grad = gradient``."""
        refuse_other_gradient(name, gradient)
        if gradient is None:
            self.leave({name})

    def leave(self, names: set[str]) -> None:
        """``zero_grad``: who holds a gradient keeps it."""
        for name in sorted(names & self.names):
            backing = self._held.get(name)
            if backing is not None:
                backing.leave()
                del self._held[name]
        self.names -= names


class FollowedHooks(ModelHooks):
    """Lets a loop's own calls reach the store of rank 0, or those of all.

    Args:
        model: its parameters give up their memory.
        optimizers: over them.
        systems: those of the loop.
        begun: the loop as rank 0 has planned it.
        home: where this system's own records are.

    Attributes:
        executor: runs the model.

    Raises:
        OpenwaferError: ``systems-states`` where the optimizers keep other states than on rank 0; as
            the store does.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        systems: LoopSystems,
        begun: BegunLoop,
        home: LoopHome,
    ) -> None:
        super().__init__(model, optimizers)
        self._systems = systems
        self._likes = _likes_of(begun.contract.plan)
        self._gradients = FollowedGradients(systems, self._likes, keeps_masters=home.keeps_masters)
        check_gradient_hooks(self._parameters)
        self._share: Owner | None = None
        self._execution = self._executed(begun, home)
        self.executor = self._execution.executor
        follow(begun.contract, self.executor)
        self._attach()

    def _executed(self, begun: BegunLoop, home: LoopHome) -> StreamedExecution:
        """What runs the model: over records of its own, where this system has any."""
        model, systems, plan = self._model, self._systems, begun.contract.plan
        device = home.given.make_device()
        if not systems.are_dealt:
            return without_records(model, plan, device, nullcontext, systems.replicas)
        updater = Updater([*self._names], model, keeps_masters=home.keeps_masters)
        share = begun.shares[systems.rank]
        self._check_states(plan, share, updater)
        store = share.create(store_folder(home.folder, systems.rank), home.given.options.store)
        # Not at exit, where the threads end by themselves.
        weakref.finalize(self, store.abandon).atexit = False
        with closed_on_error(store):
            context = StepContext(UpdateTiming.ON_FETCH, nullcontext, systems.replicas)
            execution = StreamedExecution(model, plan, store, updater, device, context)
        self._share = Owner(execution, systems.control.group)
        systems.control.answer = self._share.answer
        return execution

    def _check_states(self, plan: StepPlan, share: StoreShare, updater: Updater) -> None:
        own = lay_out_records(
            plan.split,
            parameters=self._parameters,
            state_arrays=updater.state_arrays,
            keeps_gradients=True,
        )
        for record, layout in share.layouts.items():
            if own[record] != layout:
                raise error(
                    "systems-states",
                    f"the optimizer keeps other states of {record!r} on "
                    f"{self._systems.ranks[self._systems.rank]} than on rank 0",
                    help="build the same optimizers in all processes",
                )

    def _attach(self) -> None:
        for optimizer in self._names:
            self._attach_optimizer(optimizer)
        self._attach_model()
        for name, parameter in self._parameters.items():
            home_of(parameter, self._home(name))
        self.executor.weights.release_as(ReleasedParameter)
        self.executor.observe(self)
        self._systems.attach(self.executor)
        link = self.executor.link
        assert isinstance(link, LoopLink)
        link.on_summed = self._take_names

    def _take_names(self) -> None:
        self._gradients.names = self._systems.names_of(self._share)

    def begin_backward(self) -> None:
        """See :class:`PassObserver`."""
        with self._systems.beginning_backward(self.executor):
            # Gradients that arrive are of the next step: those of the last must be gone.
            self._execution.flush()

    def _home(self, name: str) -> Home:
        backing = self._weights(name)
        return Home(
            name,
            lambda _: backing,
            # What is loaded here is loaded on rank 0, too.
            lambda name, value: None,
            lambda name, value: self._refuse(f"the weight {name!r}"),
            self._gradients.get,
            self._gradients.put,
            lambda name: None,
            partial(copied, self._model),
        )

    def _weights(self, name: str) -> Backing:
        what = f"the weight {name!r}"
        values = Values(partial(self._refuse, what), lambda value: self._refuse(what))
        return Backing(what, self._likes[name], torch.device("cpu"), values)

    def _refuse(self, what: str) -> NoReturn:
        raise self._systems.elsewhere(what)

    # The model.

    def _hooks_of(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """See :class:`ModelHooks`."""
        yield module.register_state_dict_pre_hook(lambda *_: self._refuse("model.state_dict()"))

    # Optimizers.

    def _hooks_on(self, optimizer: Optimizer) -> Iterator[RemovableHandle]:
        """See :class:`ModelHooks`."""
        self._forget_states(optimizer)
        yield optimizer.register_step_post_hook(self._end_step)
        yield optimizer.register_state_dict_pre_hook(
            lambda _: self._refuse("optimizer.state_dict()")
        )
        yield optimizer.register_load_state_dict_post_hook(self._forget_states)

    def _forget_states(self, optimizer: Optimizer) -> None:
        asked = partial(self._systems.elsewhere, "optimizer.state")
        optimizer.state = StatesElsewhere(asked)

    def _zero_grad(self, optimizer: Optimizer | None, set_to_none: bool = True) -> None:
        if set_to_none:
            names = self._gradients.names if optimizer is None else self._names[optimizer]
            self._gradients.leave(set(names))

    def begin_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        with self._systems.stepping():
            if self.executor.is_in_pass:
                self.executor.end_pass()
            self._check_in_place()
        self._systems.step()
        self._gradients.looks_empty = True
        optimizer.state = NoStates(dict)

    def _end_step(self, optimizer: Optimizer, *_: object) -> None:
        if not is_in_own_step(optimizer):
            self._gradients.looks_empty = False
            self._forget_states(optimizer)

    def close(self) -> None:
        """End what runs the model, whose weights rank 0 has, or nobody."""
        if self._share is None:
            self._execution.close()
        else:
            self._share.close()
        self._undo.close()
        for optimizer in self._names:
            optimizer.state = defaultdict(dict)


def _likes_of(plan: StepPlan) -> dict[str, torch.Tensor]:
    """The weights of a plan, on the meta device."""
    return {
        place.spec.name: place.spec.empty("meta")
        for layout in plan.layouts.values()
        for place in layout.parts[Part.WEIGHTS]
    }
