"""Weight streaming for a training loop that exists: wrap model and optimizer, keep the loop.

.. code-block:: python

    streamed = stream_weights(model, optimizer, device_memory="2GiB")
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        streamed.clip_grad_norm_(1.0)  # in the place of torch.nn.utils.clip_grad_norm_
        optimizer.step()
        optimizer.zero_grad()
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from types import MethodType, TracebackType
from typing import Any, NoReturn, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.loop.hooks import (
    FollowedHooks,
    LastHook,
    LoopHooks,
    check_last,
    is_in_own_step,
)
from openwafer.training.frontends.loop.keras_trees import hang_layers
from openwafer.training.frontends.loop.loop_systems import (
    BegunLoop,
    LoopHome,
    LoopSystems,
    OneOrAll,
    joined,
    of_systems,
    store_folder,
)
from openwafer.training.frontends.loop.model_checks import (
    check_apart,
    check_gradient_hooks,
    check_streamable,
    check_unwrapped,
    copied,
    in_parts,
    is_streamed,
    let_parts_run,
    optimizers_of,
    refuse_parts,
    refuse_tracing,
)
from openwafer.training.plan_record import Mode, PlanRecord
from openwafer.training.store.update_rules.optimizers import parameters_of
from openwafer.training.stream.assemble import Planned, assemble, plan_run
from openwafer.training.stream.execute.attachment import Function, Run
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.optimizer_states import loading_as_saved
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.admission import loss_of_call, loss_without_gradients
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import masters_of, weights_of
from openwafer.training.stream.stream_options import PlanInput, StreamOptions
from openwafer.training.torch_private import pytree


def stream_weights(  # noqa: PLR0913 - keywords, each with a default but one
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    device_memory: Size,
    folder: PathLike | None = None,
    keeps_masters: bool = False,
    systems: OneOrAll | None = None,
    options: StreamOptions | None = None,
) -> "StreamedLoop":
    """Stream the weights of a model through a device that cannot hold it.

    The first forward with gradients plans the run from its arguments. If the model fits the device
    memory with its gradients and optimizer state, model and optimizer are left as they are.
    Otherwise the weights and the optimizer's state move into a parameter store; forward, backward
    and ``optimizer.step()`` work as before and give the same bits on the CPU.

    Args:
        model: any module whose forward returns a loss, an output with a ``loss``, or tensors from
            which the loop makes one.
        optimizer: over the model's parameters, bare or as accelerate has prepared it; several that
            step together are a sequence.
        device_memory: what weights, gradients and activations may take on the device, as
            ``"2GiB"`` or in bytes.
        folder: where the store may use disk; without it, the store is in DRAM.
        keeps_masters: updates fp32 masters of bf16 weights, which begin as the weights and stay in
            the store; the weights are the masters rounded. They stream then whether they fit or
            not.
        systems: ``"all"`` trains one model on all processes of a launcher, each of which calls
            this, and backward on its own batches; the gradients of all are summed. 1 trains a
            model in this process, whatever others do.
        options: everything else.

    Returns:
        A handle with the plan, gradient clipping and the way back; leaving it as a context closes
        it.

    Raises:
        OpenwaferError: what :func:`check_streamable` and :func:`joined` raise;
            ``model-streamed-already``, ``optimizer-none``, ``systems-models``, ``rank-missing``.
    """
    where = None if folder is None else path_of(folder, "folder")
    memory_bytes = bytes_of(device_memory, "device_memory")
    _check_not_streamed(model)
    optimizers = optimizers_of(optimizer)
    hang_layers(model, optimizers)
    check_streamable(model)
    chosen = options or StreamOptions()
    if keeps_masters:
        chosen = _with_masters(model, chosen)
    ranks = joined(systems, chosen)
    # The loop's lines use a weight whole, and find it in one record.
    given = PlanInput(chosen, memory_bytes, keeps_gradients=True, by_expert=False)
    if ranks is not None:
        given = of_systems(given, ranks.size)
        ranks.begin(model, optimizers)
    home = LoopHome(given, where, keeps_masters=keeps_masters)
    return StreamedLoop(model, optimizers, home, ranks)


def _check_not_streamed(model: nn.Module) -> None:
    if is_streamed(model):
        raise error(
            "model-streamed-already",
            f"this {type(model).__name__} is streamed already",
            help="close the first handle before the model is streamed anew",
        )


def _with_masters(model: nn.Module, options: StreamOptions) -> StreamOptions:
    """Options by which the weights stream, as a resident loop would update them directly."""
    if not any(parameter.dtype is torch.bfloat16 for parameter in model.parameters()):
        raise error(
            "masters-without-bf16",
            f"keeps_masters asks for fp32 masters, and no weight of {type(model).__name__} is bf16",
            help="call model.to(torch.bfloat16) first, or leave keeps_masters out",
        )
    if options.mode is Mode.RESIDENT:
        raise error(
            "resident-masters",
            "keeps_masters asks for masters in the store, and mode for weights outside it",
            help="leave the mode to the plan, or leave keeps_masters out",
        )
    return replace(options, mode=Mode.STREAMED)


class StreamedLoop:
    """A model and its optimizers whose weights stream; made by :func:`stream_weights`.

    Attributes:
        rank: of this process, among those that train the model; rank 0 reads the weights.
        num_systems: how many train it.
        is_planning: whether a forward is under way that only plans, on copies of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        home: LoopHome,
        systems: LoopSystems | None = None,
    ) -> None:
        self.rank, self.num_systems = (0, 1) if systems is None else (systems.rank, systems.size)
        self._systems = systems
        self._outline: PlanRecord | None = None
        self._planned: Planned | None = None
        self._model = model
        self._optimizers = optimizers
        self._home = home
        self._hooks: LoopHooks | FollowedHooks | None = None
        self._own_hooks: list[RemovableHandle | LastHook] = [
            LastHook(one, self._before_step) for one in optimizers
        ]
        self._own_hooks.append(model.register_forward_pre_hook(refuse_tracing))
        if home.keeps_masters:
            self._own_hooks += [hook for one in optimizers for hook in loading_as_saved(one)]
        refuse_parts(model)
        self._own_forward = model.__dict__.get("forward")
        # A method of the model, since that is what others take apart, copy and wrap.
        self._waiting_forward = MethodType(
            _standing_in(_function_of(model), self._run_forward), model
        )
        self._is_waiting = True
        self.is_planning = False
        # A device with kernels of its own computes from the first call on, not torch in its place.
        self._begins_without_gradients = home.given.has_kernels
        model.forward = self._waiting_forward

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copied(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The others may never come.
            self._close(is_alone=True)

    def _run_forward(
        self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Plan the run at the first forward with gradients; the plan's own runs are of copies.

        A resident model is planned again where a call of it may take more than the calls before.
        """
        if not self._is_waiting or args[0] is not self._model:
            return function(*args, **kwargs)
        planned = self._planned
        if planned is not None and planned.has_room_for(args[1:], kwargs):
            return function(*args, **kwargs)
        if not torch.is_grad_enabled() and not self._begins_without_gradients:
            with nullcontext() if planned is None else planned.metering(self._on_device()):
                return function(*args, **kwargs)
        loss_of = loss_of_call if torch.is_grad_enabled() else loss_without_gradients
        workload = Workload(self._model, [(args[1:], dict(kwargs))], loss_of)
        try:
            with torch.enable_grad():
                self._begin(workload)
        except OpenwaferError:
            raise
        except Exception:
            # What the model raised when it was planned it raises itself, and changes what it
            # changes until then. A plan that fails by itself is told.
            function(*args, **kwargs)
            raise
        self._is_waiting = self._hooks is None
        if self._hooks is None:
            return function(*args, **kwargs)
        run = partial(function, self._model)
        return self._hooks.execution.executor.run_root(run, args[1:], kwargs)

    @contextmanager
    def _unwrapped(self) -> Iterator[None]:
        """Without what is wrapped around the model's forward, and is under way already.

        Autocast as a decorator stays on when it is entered twice.
        """
        wrapped = self._model.forward
        self._model.forward = self._waiting_forward
        try:
            yield
        finally:
            self._model.forward = wrapped

    def _give_forward_back(self) -> None:
        self._is_waiting = False
        # What somebody has wrapped around it stays, and calls the model's own.
        if self._model.__dict__.get("forward") is not self._waiting_forward:
            return
        del self._model.__dict__["forward"]
        if self._own_forward is not None:
            self._model.forward = self._own_forward

    def _begin(self, workload: Workload) -> None:
        let_parts_run(self._model)
        check_apart(self._model, self._model)
        if self._systems is None:
            self._begin_here(self._plan(workload))
        else:
            self._begin_on(self._systems, workload)

    def _begin_here(self, planned: Planned) -> None:
        if planned.plan.mode is Mode.STREAMED:
            self._stream(planned)
        self._planned = planned

    def _begin_on(self, systems: LoopSystems, workload: Workload) -> None:
        control = systems.control
        with control.reaching("the first forward with gradients"):
            check_unwrapped()
        given = systems.with_hosts(self._home.given)
        self._home = replace(self._home, given=given)
        planned: Planned | None = None

        def plan() -> BegunLoop:
            nonlocal planned
            planned = self._plan(workload)
            return BegunLoop.of(planned)

        begun = control.share(plan)
        self._outline = begun.outline
        systems.deal(begun.contract.ownership)
        with control.reaching("the beginning of the stream"):
            if not systems.is_leader:
                self._hooks = FollowedHooks(
                    self._model, self._optimizers, systems, begun, self._home
                )
        # Who owns records takes them from rank 0 here.
        control.share(None if planned is None else partial(self._begin_here, planned))

    def _plan(self, workload: Workload) -> Planned:
        self.is_planning = True
        try:
            with self._unwrapped():
                home = self._home
                updater = Updater(self._optimizers, self._model, keeps_masters=home.keeps_masters)
                return plan_run(workload, updater, home.given, folder=home.folder)
        finally:
            self.is_planning = False

    def _stream(self, planned: Planned) -> None:
        """Let the weights stream."""
        systems = self._systems
        check_gradient_hooks(dict(self._model.named_parameters()))
        folder, replicas = self._home.folder, None
        if systems is not None:
            replicas = systems.replicas
            folder = store_folder(folder, systems.rank) if systems.are_dealt else folder
        execution = assemble(self._model, planned, folder=folder, replicas=replicas)
        assert isinstance(execution, StreamedExecution)
        hooks = LoopHooks(self._model, execution, systems)
        hooks.attach()
        self._hooks = hooks

    def _on_device(self) -> Iterator[torch.Tensor]:
        """What a resident model and its optimizers hold."""
        for parameter in self._model.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        for optimizer in self._optimizers:
            yield from filter(torch.is_tensor, pytree.tree_leaves([*optimizer.state.values()]))

    def begin_without_gradients(self) -> None:
        """Let a forward without gradients begin the stream, too: of a loop that only evaluates."""
        self._begins_without_gradients = True

    def streams(self, model: nn.Module) -> bool:
        """Whether this is the loop of a model, and is not closed."""
        return self._model is model and is_streamed(model)

    def is_stepped_by(self, optimizer: Optimizer | Sequence[Optimizer]) -> bool:
        """Whether these are its optimizers, in their order."""
        given = optimizers_of(optimizer)
        return [*map(id, given)] == [*map(id, self._optimizers)]

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether a parameter of an optimizer has a gradient; nothing is read."""
        if isinstance(self._hooks, LoopHooks):
            return self._hooks.has_gradients(optimizer)
        return any(parameter.grad is not None for parameter in parameters_of(optimizer))

    @property
    def plan(self) -> PlanRecord | None:
        """What was planned; ``None`` until the first forward with gradients.

        The time of a step is not in it, for :meth:`predict` has to measure it.
        """
        return self._outline if self._planned is None else self._planned.outline

    def predict(self) -> PlanRecord | None:
        """What was planned, with the time that a step will take.

        It takes some seconds when it is called for the first time: operators are timed and, where
        records are on disk, up to 256 MiB are written beside them and read.
        """
        return self._outline if self._planned is None else self._planned.report

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_in_own_step(optimizer):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.plan is None and any(p.grad is not None for p in parameters_of(optimizer)):
            raise in_parts(self._model, "its optimizer is to take a step")
        if self._hooks is not None:
            check_last(optimizer, self._before_step)
            self._hooks.begin_step(optimizer)
        return None if closure is None else ((args[0], lambda: loss), {})

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and gradients of the step under way, copied record by record from the store.

        Of several systems, rank 0 has them, and the others raise ``systems-elsewhere``.
        """
        hooks = self._hooks_here("streamed.gradients()")
        if hooks is not None:
            yield from hooks.gradients.all()
            return
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and copies of the weights after the last step, record by record.

        See :meth:`gradients`.
        """
        hooks = self._hooks_here("streamed.weights()")
        found = self._model.named_parameters() if hooks is None else weights_of(hooks.settled())
        for name, weight in found:
            yield name, weight.detach().clone()

    def masters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and copies of the fp32 masters after the last step, record by record.

        Before the first forward and after :meth:`close` they are the states ``"master"`` of the
        optimizers. See :meth:`gradients`.
        """
        hooks = self._hooks_here("streamed.masters()")
        if hooks is not None:
            yield from masters_of(hooks.settled())

    def _hooks_here(self, what: str) -> LoopHooks | None:
        """The hooks of rank 0, where the weights stream; other ranks are refused."""
        if isinstance(self._hooks, FollowedHooks):
            raise self._hooks.elsewhere(what)
        return self._hooks

    def alone(self) -> AbstractContextManager[None]:
        """Context in which rank 0 calls the model, and reads gradients, without the others.

        Raises:
            OpenwaferError: ``systems-elsewhere`` on another rank.
        """
        return nullcontext() if self._systems is None else self._systems.alone()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the gradients of this step by their global norm, exactly.

        Args:
            max_norm: largest norm the update may see.
            norm_type: order of the norm.
            error_if_nonfinite: refuses a norm that is NaN or infinite, as torch does on request.

        Returns:
            The norm before clipping, a scalar, bitwise that of torch's ``clip_grad_norm_``.

        Raises:
            OpenwaferError: ``clipped-twice`` in one step.
        """
        if self._hooks is None:
            return nn.utils.clip_grad_norm_(
                self._model.parameters(), max_norm, norm_type, error_if_nonfinite
            )
        return self._hooks.gradients.clip(
            max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    def close(self) -> None:
        """Give model and optimizers their weights and states back, and end the store.

        Training may go on as a plain loop, or be streamed anew. Of several systems, rank 0 gets
        them, and the models of the others stay without weights.
        """
        if self._systems is None or self._systems.control.is_broken:
            self._close(is_alone=self._systems is not None)
            return
        with ExitStack() as rest:
            if not self._systems.is_leader:
                # Rank 0 asks for what is here until it has come.
                rest.callback(self._close)
            with self._systems.control.reaching("streamed.close()"):
                if self._systems.is_leader:
                    self._close()

    def _close(self, *, is_alone: bool = False) -> None:
        let_parts_run(self._model)
        for handle in self._own_hooks:
            handle.remove()
        hooks = self._hooks
        if isinstance(hooks, LoopHooks):
            self._hooks = None
        try:
            if hooks is not None:
                hooks.close(is_alone=is_alone)
        finally:
            self._give_forward_back()


def _standing_in(function: Function, run: Run) -> Function:
    """A stand-in that is a function, as compilers want to see one."""
    return wraps(function)(lambda *args, **kwargs: run(function, args, kwargs))


def _function_of(model: nn.Module) -> Function:
    """The forward of a model as a function whose first argument is the model or a copy of it."""
    own = model.__dict__.get("forward")
    if own is None:
        return type(model).forward
    if isinstance(own, MethodType) and own.__self__ is model:
        return own.__func__

    @wraps(own)
    def forward(_model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    return forward
