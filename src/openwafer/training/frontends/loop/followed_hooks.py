"""Ties a loop's model and optimizers to a store that another system has, or the most of it.

Forward and backward are a rank's own, with weights that come and gradients that go. What the loop
reads of gradients comes from rank 0, when all systems read it. The writes of rank 0 count: those of
this rank's program are dropped, as it is the same program. Where this rank owns records, it updates
them when rank 0 says so, and by its rules.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.hooks import (
    ModelHooks,
    NoStates,
    copied,
    is_in_own_step,
)
from openwafer.training.frontends.loop.loop_systems import (
    BegunLoop,
    LoopHome,
    LoopSystems,
    follow,
    refuse_other_gradient,
    store_folder,
)
from openwafer.training.frontends.loop.model_checks import check_gradient_hooks
from openwafer.training.frontends.loop.released_parameters import Home, ReleasedParameter, home_of
from openwafer.training.frontends.loop.stored_tensor import Backing, StoredTensor, Values
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.stream.execute.execution import (
    StepContext,
    StreamedExecution,
    without_records,
)
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.chosen_device import make_device
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.replicas.loop_link import LoopLink
from openwafer.training.stream.replicas.ownership import StoreShare
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.step_plan import StepPlan
from openwafer.training.systems.owner import Owner
from openwafer.training.torch_private import graph_task_id


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
        device = make_device(home.given.chosen_device)
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
