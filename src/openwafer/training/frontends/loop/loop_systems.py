"""The systems of a user's own loop: processes of a launcher that all run the user's program.

What the program of rank 0 has in the model, the optimizer and its options is what counts. The
others compute on their own batches, with the weights that the owners of records send. These are
rank 0 alone, or all systems, which do what rank 0 asks while they wait for what all do next.
"""

import hashlib
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self, TypeAlias

import torch
from torch import distributed as dist
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.group import FIRST_RANK, Rank
from openwafer.training.collectives.joining import Meeting, launched_rank, meet_launched
from openwafer.training.frontends.loop.parameters import (
    Backing,
    GradientsHome,
    HeldBackings,
    StoredTensor,
    Values,
    WeightsHome,
)
from openwafer.training.plan_record import PlanRecord
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.pass_watch import (
    ROOT,
    CallKind,
    Graph,
    PassWatch,
    StepContract,
    larger_than_planned,
)
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.replicas.loop_link import LoopLink
from openwafer.training.stream.replicas.ownership import Ownership, StoreSystems, hosts_of
from openwafer.training.stream.replicas.replica_link import Replicas
from openwafer.training.stream.step_plan import StepPlan
from openwafer.training.stream.stream_options import PlanInput, StreamOptions
from openwafer.training.systems.control import Control
from openwafer.training.systems.owner import LoopOwner, Owners
from openwafer.training.torch_private import PrefixStore, default_store, graph_task_id

ALL: Final = "all"
WHEN_ASKED: Final = (
    "a system does what rank 0 asks for while it waits in the next line that all of them run; a "
    "barrier of the program's own keeps it from that"
)
OneOrAll: TypeAlias = Literal["all", 1]
Living: TypeAlias = Sequence[Graph] | None


@dataclass(frozen=True)
class LoopHome:
    """Where the weights of a loop, or a system's share of them, are, and how.

    Attributes:
        given: what the loop is planned from.
        folder, keeps_masters: see :func:`stream_weights`.
    """

    given: PlanInput
    folder: Path | None
    keeps_masters: bool = False


class _Call(NamedTuple):
    kind: CallKind
    args: Any
    kwargs: Any
    living: Sequence[Graph]


@dataclass(frozen=True)
class BegunLoop:
    """A loop that begins to stream.

    Attributes:
        contract: what all of them go by.
        outline: the plan for people.
    """

    contract: StepContract
    outline: PlanRecord

    @classmethod
    def of(cls, planned: Planned) -> Self:
        """A loop as it is planned. Raises ``optimizer-unsendable``."""
        contract = planned.contract
        if contract.shares:
            require_sendable(planned.updater)
        return cls(contract, planned.outline)


def follow(contract: StepContract, executor: Executor) -> None:
    """Let an executor go by a contract."""
    executor.follow(contract.plan)
    executor.watch.hold_to(contract)


def require_sendable(updater: Updater) -> None:
    """See that the rules of a step can go to the systems that update by them.

    Raises:
        OpenwaferError: ``optimizer-unsendable``.
    """
    try:
        pickle.dumps(updater.this_step())
    except (pickle.PicklingError, AttributeError, TypeError) as cause:
        kinds = ", ".join(type(one).__name__ for one in updater.optimizers)
        raise error(
            "optimizer-unsendable",
            f"systems that own records update them by the {kinds} of rank 0, which cannot be sent: "
            f"{cause}",
            help="set store_systems to first",
        ) from cause


def joined(systems: OneOrAll | None, options: StreamOptions) -> "LoopSystems | None":
    """The systems of a loop; ``None`` where it trains by itself.

    Raises:
        OpenwaferError: ``systems-unsaid`` where a launcher started several processes and nobody
            said what becomes of them; ``systems-missing`` where there is no launcher.
    """
    launched = _rank_and_size()
    if systems == ALL:
        if launched is None:
            raise error(
                "systems-missing",
                'systems="all" joins the processes of a launcher, and this one is alone',
                help="start the program by torchrun, or leave systems out",
            )
        return _met(options) if launched[1] > 1 else None
    if systems is None and launched is not None and launched[1] > 1:
        rank, size = launched
        raise error(
            "systems-unsaid",
            f"this is process {rank} of {size} of a launcher, and stream_weights was not told "
            "whether they train one model",
            help='systems="all" trains one model on all of them; systems=1 trains one in each, '
            "which then share this host's memory: give each a host_memory_bytes",
        )
    return None


def of_systems(given: PlanInput, size: int) -> PlanInput:
    """What a loop on several systems is planned from."""
    where, reason = given.options.store_systems, given.store_reason
    if where is StoreSystems.ALL:
        reason = f"store_systems is {where}"
    elif where is StoreSystems.AUTO:
        where = StoreSystems.FIRST
    options = replace(given.options, store_systems=where)
    return replace(given, options=options, systems=size, store_reason=reason)


def store_folder(folder: Path | None, rank: int) -> Path | None:
    """Where the store of a system is that has a share of the records; on one host they differ."""
    return None if folder is None else folder / f"store-{rank}"


def _rank_and_size() -> tuple[int, int] | None:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return launched_rank()


def _met(options: StreamOptions) -> "LoopSystems":
    meeting = _meet(options.systems_timeout_seconds)
    return LoopSystems(meeting, divisor=meeting.size if options.averages_gradients else 1)


def _meet(timeout_seconds: float) -> Meeting:
    """The launcher's processes; each call is a meeting of its own, in the order of the program."""
    if dist.is_initialized():
        store = default_store()
        meeting = Meeting(store, dist.get_rank(), dist.get_world_size(), timeout_seconds)
    else:
        meeting = meet_launched(timeout_seconds)
    number = meeting.store.add(f"openwafer/loops/{meeting.rank}", 1)
    return replace(meeting, store=PrefixStore(f"openwafer-loop-{number}", meeting.store))


class LoopSystems:
    """The systems of a loop as one of them sees them.

    Args:
        meeting: where they meet.
        divisor: of every gradient.

    Attributes:
        rank, size: this system's index, and how many there are.
        control: what they do together.
        replicas: how weights and gradients pass.
        owners: on rank 0, those of records, if others have some.
    """

    def __init__(self, meeting: Meeting, divisor: int = 1) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        (controlling,) = meeting.groups(("control",))
        self.control = Control(controlling, asked_note=WHEN_ASKED)
        weights, gradients = meeting.two_way_groups(("weights", "gradients"))
        link = partial(LoopLink, group=controlling, divisor=divisor)
        self.replicas = Replicas(weights, gradients, link=link)
        self.owners: Owners | None = None
        self._is_alone = self._begins_backward = False
        self._link: LoopLink | None = None
        self._executor: Executor | None = None

    @property
    def is_leader(self) -> bool:
        """Whether it is this system's lines that count."""
        return self.rank == FIRST_RANK

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All of them."""
        return self.control.group.ranks

    @property
    def here(self) -> Rank:
        """This one."""
        return self.ranks[self.rank]

    def elsewhere(self, what: str) -> OpenwaferError:
        """The error of who asks for something here that rank 0 has."""
        return error(
            "systems-elsewhere",
            f"{what} is in the parameter store of {self.ranks[FIRST_RANK]}, and this is "
            f"{self.here}",
            help="do this on rank 0 only: if streamed.rank == 0",
        )

    # The model.

    def begin(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """See that all systems have one model, and give it the values of rank 0.

        Raises:
            OpenwaferError: ``systems-models`` where a parameter or a buffer is another here.
        """
        self.control.reach("stream_weights")
        own = _described(model, optimizers)
        told = self.control.share(lambda: own)
        with self.control.reaching("training this model"):
            self._compare(told, own)
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                sent = tensor.detach().contiguous()
                self.control.show(sent, f"the values of {name!r}")
                if not self.is_leader and sent.data_ptr() != tensor.data_ptr():
                    tensor.copy_(sent)

    def _compare(self, told: dict[str, str], own: dict[str, str]) -> None:
        for name in (*told, *own):
            there, here = told.get(name, "missing"), own.get(name, "missing")
            if there != here:
                raise error(
                    "systems-models",
                    f"{name} is {here} on {self.here} and {there} on {self.ranks[FIRST_RANK]}",
                    help="build the same model and the same optimizers in all processes",
                )
        if list(told) != list(own):
            raise error(
                "systems-models",
                f"the parameters of {self.here} are those of "
                f"{self.ranks[FIRST_RANK]} in another order",
                help="build the same model and the same optimizers in all processes",
            )

    # Stores.

    def with_hosts(self, given: PlanInput) -> PlanInput:
        """The same with what the host of each system has; all of them call this."""
        hosts = hosts_of(self.control.group)
        is_shared = given.options.store_systems is StoreSystems.ALL
        return replace(given, hosts=hosts) if is_shared else given

    def deal(self, ownership: Ownership) -> None:
        """Let each system have the records that it owns; all of them call this."""
        self.replicas = replace(self.replicas, ownership=ownership)
        if self.are_dealt and self.is_leader:
            self.owners = reached = Owners(self.control, ownership.owners, self.check_answers)
            self.replicas = replace(
                self.replicas, over=reached.over, read_weights=reached.read_weights
            )

    @property
    def are_dealt(self) -> bool:
        """Whether others than rank 0 have records."""
        return any(owner != FIRST_RANK for owner in self.replicas.ownership.owners.values())

    def check_answers(self, rank: int) -> None:
        """Check that a system can answer what rank 0 asks: it may wait for that itself in a pass.

        Raises:
            OpenwaferError: ``systems-in-pass``.
        """
        if self._is_in_pass and not (self._is_alone or self._begins_backward):
            raise error(
                "systems-in-pass",
                f"a value is in the parameter store of {self.ranks[rank]}, and is asked for while "
                "a forward or a backward of all systems runs",
                help="use it before the forward or behind the backward, or set store_systems to "
                "first",
            )

    @property
    def _is_in_pass(self) -> bool:
        """Whether a forward or a backward goes on."""
        executor = self._executor
        return executor is not None and executor.is_in_pass and not executor.weights.are_hidden

    # Passes.

    def attach(
        self,
        executor: Executor,
        on_summed: Callable[[], None],
        on_forward: Callable[[], None] = lambda: None,
        plan: Callable[[], StepPlan] | None = None,
    ) -> None:
        """Let the passes of an executor be those of all systems.

        Args:
            executor: of a model that streams.
            on_summed: called when the sums of a backward are with their owners.
            on_forward: called before all of them begin a forward.
            plan: on rank 0, what the executor goes by.
        """
        link = executor.link
        assert isinstance(link, LoopLink)
        self._link, self._executor = link, executor
        link.is_alone, link.on_summed = self._is_alone, on_summed

        def agree(kind: CallKind, args: Any, kwargs: Any, living: Living) -> None:
            on_forward()
            if not self._is_alone:
                lacking = self._begin_forward(kind, lacks_room=living is not None)
                call = _Call(kind, args, kwargs, living or ())
                self._make_room(executor, plan, call, lacking)
            elif living is not None and executor.watch.admit is not None:
                move = executor.watch.move_graphs
                executor.watch.admit(kind, args, kwargs, living, move)

        executor.watch.agree = agree

    @contextmanager
    def beginning_backward(self, executor: Executor) -> Iterator[None]:
        """Context at the beginning of a backward, which the others come to."""
        link = executor.link
        assert isinstance(link, LoopLink)
        with executor.device.host_section(), self.control.reaching("a backward"):
            self._begins_backward = True
            try:
                yield
            finally:
                self._begins_backward = False
        link.begin_backward()

    def _begin_forward(self, kind: CallKind, *, lacks_room: bool) -> list[int]:
        """All systems begin a forward; returns those that have no room for it."""
        called = "the model" if kind.function == ROOT else kind.function
        how = "with" if kind.is_graded else "without"
        flags = self.control.reach(f"a forward of {called} {how} gradients", flag=lacks_room)
        return [rank for rank, is_lacking in enumerate(flags) if is_lacking]

    def _make_room(
        self,
        executor: Executor,
        plan: Callable[[], StepPlan] | None,
        call: _Call,
        lacking: Sequence[int],
    ) -> None:
        if not lacking:
            return
        calls = self.control.collect(call, lacking)
        if plan is None:
            follow(self.control.share(), executor)
        else:
            self.control.share(partial(self._admitted, executor.watch, plan, calls))

    def _admitted(
        self, watch: PassWatch, plan: Callable[[], StepPlan], calls: Mapping[int, _Call]
    ) -> StepContract:
        """The plan that has room for calls of several systems."""
        assert watch.admit is not None
        for rank, call in calls.items():
            is_own = rank == FIRST_RANK
            watch.admit(*call, watch.move_graphs if is_own else partial(self._move_graphs, rank))
        for call in calls.values():
            if not any(call.kind.fits_in(known) for known in watch.planned):
                # Room for another system's call was made at the cost of this one.
                raise larger_than_planned(call.kind, watch.planned)
        return watch.contract(plan().without_predictions())

    def _move_graphs(self, rank: int) -> Sequence[Graph]:
        """Have another system move its graphs to host memory; what they still hold there."""
        self.control.ask(LoopOwner.move_graphs, rank)
        left: Sequence[Graph] = self.control.answer_of(rank)
        return left

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Context in which rank 0 calls the model by itself."""
        if not self.is_leader:
            raise self.elsewhere("streamed.alone(): what the model needs")
        self._set_alone(is_alone=True)
        try:
            with self.control.waited_for():
                yield
        finally:
            self._set_alone(is_alone=False)

    def _set_alone(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        if self._link is not None:
            self._link.is_alone = is_alone

    # Gradients and steps.

    def names_with_gradients(
        self, kept: object = None, names: Callable[[Iterable[Any]], set[str]] | None = None
    ) -> set[str]:
        """Parameters that have a gradient now; all of them call this.

        Args:
            kept: by an owner of records, which rank 0 learns.
            names: makes them of what the owners keep, on rank 0.
        """
        told = self.control.collect(kept, self._owners)
        return self.control.share(None if names is None else partial(names, told.values()))

    @property
    def _owners(self) -> list[int]:
        """Systems with records, but for rank 0."""
        return sorted({*self.replicas.ownership.owners.values()} - {FIRST_RANK})

    def stepping(self) -> AbstractContextManager[None]:
        """Context of the checks before an optimizer's step, which all systems take or refuse."""
        return self.control.reaching("optimizer.step()")

    def step(self, take: Callable[[], None] | None = None) -> None:
        """Take the step, on rank 0; owners of records stay until nothing more is asked for it."""
        if self.are_dealt:
            self.control.share(take)
        elif take is not None:
            take()

    def clip(self, clip: Callable[[], torch.Tensor] | None = None) -> torch.Tensor:
        """Clip all gradients, on rank 0; all of them call this, and get the norm."""
        self.control.reach("streamed.clip_grad_norm_")
        return self.control.share(clip)

    def shown(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient that all systems read: of rank 0, in the tensors of the others."""
        if self._is_alone:
            return gradient
        what = f"a read of the gradient of {name!r}"
        self.control.reach(what)
        sent = self.control.show(gradient.contiguous(), what)
        return gradient if self.is_leader else gradient.copy_(sent)


class WeightsElsewhere(WeightsHome):
    """The weights of a loop on a system whose lines neither read nor write them.

    Args:
        systems: those of the loop.
        likes: the weights by name, on the meta device.
    """

    def __init__(self, systems: LoopSystems, likes: Mapping[str, torch.Tensor]) -> None:
        self._systems, self._likes = systems, likes

    def get(self, name: str) -> Backing:
        refuse = partial(self.replace, name)
        values = Values(refuse, refuse)
        return Backing(f"the weight {name!r}", self._likes[name], torch.device("cpu"), values)

    def write(self, name: str, value: torch.Tensor) -> None:
        """See :class:`WeightsHome`. What is loaded here is loaded on rank 0, too."""

    def replace(self, name: str, value: torch.Tensor | None = None) -> NoReturn:
        raise self._systems.elsewhere(f"the weight {name!r}")


class GradientsElsewhere(GradientsHome):
    """The gradients of a loop on a system that reads them of rank 0, when all systems do.

    Args:
        systems: those of the loop.
        likes: the weights by name, on the meta device.
        keeps_masters: whether the store updates fp32 masters, so that no factor can wait.

    Attributes:
        names: parameters that have a gradient.
    """

    def __init__(
        self, systems: LoopSystems, likes: Mapping[str, torch.Tensor], *, keeps_masters: bool
    ) -> None:
        self.names: set[str] = set()
        self.looks_empty = False
        self._systems, self._likes = systems, likes
        self._keeps_masters = keeps_masters
        self._held = HeldBackings[str]()

    def get(self, name: str) -> StoredTensor | None:
        if graph_task_id() != -1:
            raise self._systems.elsewhere(f"the gradient of {name!r}, while backward runs,")
        if self.looks_empty or name not in self.names:
            return None
        return self._held.made(name, partial(self._backing, name)).whole()

    def _backing(self, name: str) -> Backing:
        def read() -> torch.Tensor:
            return self._systems.shown(name, torch.empty_like(like, device="cpu"))

        like, what = self._likes[name], f"the gradient of {name!r}"
        values = Values(read, lambda value: None, lambda factor: not self._keeps_masters)
        return Backing(what, like, torch.device("cpu"), values)

    def put(self, name: str, gradient: torch.Tensor | None) -> None:
        refuse_other_gradient(name, gradient)
        if gradient is None:
            self.leave({name})

    def clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> torch.Tensor:
        """See :class:`GradientsHome`. Rank 0 clips."""
        return self._systems.clip()

    def note_outside(self, name: str) -> None:
        """See :class:`GradientsHome`. Rank 0 notes it."""

    def leave(self, names: Collection[str]) -> None:
        """``zero_grad``: who holds a gradient keeps it."""
        for name in sorted(self.names.intersection(names)):
            self._held.leave(name)
        self.names.difference_update(names)


def refuse_other_gradient(name: str, gradient: torch.Tensor | None) -> None:
    """Refuse ``parameter.grad = gradient`` but for none, and for what was there.

    Raises:
        OpenwaferError: ``systems-gradient-set``.
    """
    if gradient is not None and not isinstance(gradient, StoredTensor):
        raise error(
            "systems-gradient-set",
            f"{name}.grad was given another tensor, and the gradients of several systems are in "
            "their parameter store",
            help="write to the gradient that is there: parameter.grad.copy_(value)",
        )


def _described(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """What has to be alike on all systems, by name."""
    described = {
        f"the parameter {name!r}": f"{tuple(p.shape)} {p.dtype}"
        + ("" if p.requires_grad else " without gradient")
        for name, p in model.named_parameters()
    }
    described |= {
        f"the buffer {name!r}": f"{tuple(b.shape)} {b.dtype}" for name, b in model.named_buffers()
    }
    names = {id(p): name for name, p in model.named_parameters()}
    for index, optimizer in enumerate(optimizers):
        groups = [[names.get(id(p), "?") for p in g["params"]] for g in optimizer.param_groups]
        held = [name for group in groups for name in group]
        digest = hashlib.sha256(repr(groups).encode()).hexdigest()[:8]
        described[f"optimizer {index}"] = (
            f"{type(optimizer).__name__} of {len(held)} parameters ({digest})"
        )
    return described
