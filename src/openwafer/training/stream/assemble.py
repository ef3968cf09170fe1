"""From a model, an optimizer and a device budget to a planned execution."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import psutil
import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.plan_record import (
    ExpertsWay,
    ExpertTraffic,
    Mode,
    ModeChoice,
    PlanRecord,
)
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import ParameterStore, Tier, closed_on_error
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.layer_backend import TORCH, check_kernels
from openwafer.training.stream.execute.execution import (
    Execution,
    StepContext,
    StreamedExecution,
)
from openwafer.training.stream.execute.pass_watch import ROOT, Members, StepContract, call_kind
from openwafer.training.stream.execute.resident import (
    DeviceResidentExecution,
    ResidentExecution,
    foreach_bytes,
)
from openwafer.training.stream.layers import Partition, partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.admission import Admission, bare_copy
from openwafer.training.stream.plan.experts import ExpertChoice, expert_weights, not_owned
from openwafer.training.stream.plan.placement import (
    HostBudget,
    StorePlacement,
    StoreTier,
    merged,
    on_first_host,
    place,
)
from openwafer.training.stream.plan.refusals import (
    check_is_dense,
    check_own_memory,
    refuse_systems,
    refuse_uses,
)
from openwafer.training.stream.plan.report import (
    expert_bytes,
    host_peak,
    lent_bytes,
    owned_bytes,
    report_of,
    resident_beside,
    resident_now,
    sparse_use,
)
from openwafer.training.stream.plan.search import (
    PlanRequest,
    SplitAt,
    StreamPlan,
    dry_step_of,
    make_plan,
    split_for_host,
)
from openwafer.training.stream.plan.step_time import Beside, Passing, Prediction, predict
from openwafer.training.stream.plan.traffic import PlannedBytes, bytes_of
from openwafer.training.stream.plan.workload import Batch, Workload, unseen
from openwafer.training.stream.records import lay_out_records, write_weights
from openwafer.training.stream.replicas.ownership import (
    HostMemory,
    StoreShare,
    StoreSystems,
    fair_bytes,
    fetched_but_experts,
    owners_of,
    share_of,
)
from openwafer.training.stream.replicas.replica_link import Replicas, records_of
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.stages.stage_execution import StageExecution
from openwafer.training.stream.stages.stage_plan import Staged
from openwafer.training.stream.stream_options import PlanInput, StreamOptions


@dataclass(frozen=True)
class Planned:
    """A run that is planned and not begun.

    Attributes:
        plan: the step on the device.
        owners: the rank in whose store a record is.
        placements: where the records of each rank that has any live on its host.
        updater: update rules and counts.
        device: where the model will run.
        given: what it was planned from.
        workload: what a step does.
        folder: where a disk tier would be.
        request: what the plan was asked for, with a copy of the model that has no weights.
        beside_bytes: the process's resident set without the weights when the plan was made;
            ``None`` where the kernel does not say.
        expert_traffic: how several systems compute experts; ``None`` where that is no question.
        choice: why several systems share the work as they do; ``None`` where the caller said it.
        stages: what each of several systems has, where weights do not stream to them. All else is
            of one system that has all of it.
    """

    plan: StreamPlan
    owners: Mapping[str, int]
    placements: tuple[StorePlacement, ...]
    updater: Updater
    device: Device
    given: PlanInput
    workload: Workload
    folder: Path | None
    request: PlanRequest
    beside_bytes: int | None
    expert_traffic: ExpertTraffic | None
    choice: ModeChoice | None = None
    stages: Staged | None = None

    def with_experts(self, traffic: ExpertTraffic) -> Self:
        """The same plan, whose experts are computed where their records are: none crosses a link.

        Args:
            traffic: see above.
        """
        dry = replace(self.plan.dry, nested=())
        return replace(self, plan=replace(self.plan, dry=dry), expert_traffic=traffic)

    @property
    def placement(self) -> StorePlacement:
        """Where all records live, on the hosts of their owners."""
        return merged(self.placements)

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        """Of all records."""
        return self.plan.layouts if self.stages is None else self.stages.plan.all_layouts

    @property
    def shares(self) -> tuple[StoreShare, ...]:
        """What the store of each rank holds that has any records."""
        num_stores = len(self.placements) if self.stages is None else self.stages.plan.num_ranks
        return tuple(map(self.share, range(num_stores)))

    def share(self, rank: int) -> StoreShare:
        """What the store of a rank holds."""
        if self.stages is not None:
            return self.stages.plan.share(rank)
        layouts = share_of(self.plan.layouts, self.owners, rank)
        placement = self.placements[rank]
        ring_bytes = placement.ring_bytes + self._lent_bytes
        return StoreShare(layouts, placement.tiers, ring_bytes, self.uses_disk)

    @cached_property
    def report(self) -> PlanRecord:
        """The plan for people and files, with the time of a step.

        Operators are timed for it, and the disk is read and written where records are on it.
        """
        allocation = self.workload.allocation
        before = resident_now()
        predicted = predict(
            self.plan,
            replace(self._moved.usual, row_bytes=self._row_bytes),
            self.updater,
            self.device,
            allocation,
            Beside(self.folder, self._passing),
        )
        if self.given.systems > 1 and self.given.network is None:
            predicted = replace(predicted, time=None)
        after = resident_now()
        # Trials bring in what of the libraries a step uses.
        grown = 0 if before is None or after is None else max(after - before, 0)
        return self._described(predicted, grown)

    @property
    def _passing(self) -> Passing | None:
        rates, num_systems = self.given.network, self.given.systems
        if rates is None or num_systems == 1:
            return None
        return Passing(rates, num_systems, self.owners)

    @property
    def contract(self) -> StepContract:
        """What the ranks of the run go by."""
        return self.contract_by(self.plan)

    def contract_by(self, plan: StreamPlan) -> StepContract:
        """The same by another plan of its steps."""
        shares = self.shares
        stages = None if self.stages is None else self.stages.plan
        return replace(
            plan.contract,
            ownership=fetched_but_experts(self.owners, self.given.systems)
            if stages is None
            else stages.ownership,
            stages=stages,
            shares=shares if len(shares) > 1 else (),
        )

    @cached_property
    def outline(self) -> PlanRecord:
        """The same without the time of a step: nothing is run or written for it."""
        return self._described(Prediction())

    @cached_property
    def _moved(self) -> PlannedBytes:
        return self._bytes_of(self.plan)

    def _bytes_of(self, plan: StreamPlan) -> PlannedBytes:
        here = on_first_host(self.placements, self.given.hosts)
        placement = merged(here)
        return bytes_of(
            plan,
            placement,
            self.timing,
            ring_bytes=placement.ring_bytes + len(here) * self._lent_bytes,
            commits_steps=self.given.commits_steps,
            speculates=self.speculates,
        )

    def _described(self, predicted: Prediction, grown_bytes: int = 0) -> PlanRecord:
        model = self.workload.model
        if self.beside_bytes is not None:
            held = self.workload.held_gradients
            of_gradients = held.host_bytes
            if self.plan.mode is Mode.RESIDENT and self.device.torch_device.type == "cpu":
                of_gradients += held.while_resident
            beside = self.beside_bytes + grown_bytes + self._gradients_of_experts + of_gradients
            peak = host_peak(beside, self.plan, self.share(FIRST_RANK))
            predicted = replace(predicted, host_bytes=peak)
        described = report_of(self.plan, self.placement, model, self.device, self._moved, predicted)
        described = replace(
            described,
            sparse=sparse_use(self.plan, model, lambda plan: self._bytes_of(plan).usual.step),
            systems=self.given.systems,
            stores=self.given.store_use,
            choice=self.choice,
            expert_traffic=self.expert_traffic,
            experts=None if self._row_bytes else described.experts,
        )
        if self.stages is None:
            return described
        return self.stages.described(described, predicted.updating, self.given.network)

    @property
    def _gradients_of_experts(self) -> int:
        """Most bytes of them beside the store."""
        joins, systems = self.given.keeps_gradients, self.given.systems
        if not self._row_bytes:
            return expert_bytes(self.plan, joins=joins)
        owned, num_micro_batches = self.share(FIRST_RANK).layouts, len(self.workload.batches)
        return owned_bytes(self.plan, owned.keys(), systems * num_micro_batches, joins=joins)

    @property
    def _row_bytes(self) -> int:
        return 0 if self.expert_traffic is None else self.expert_traffic.row_bytes

    @property
    def timing(self) -> UpdateTiming:
        """When records are updated, in a step that speculates if it may."""
        schedule = self.plan.schedule
        return self.given.timing if schedule is None else schedule.timing

    @property
    def speculates(self) -> bool:
        """Whether steps are updated as gradients arrive, though they may have to be undone."""
        is_streamed = self.plan.schedule is not None
        return is_streamed and self.given.keeps_gradients and self.timing is UpdateTiming.ON_PUSH

    def has_room_for(self, args: object, kwargs: object) -> bool:
        """Whether a call of the model is within those that the plan was made for."""
        members, device = Members.of(self.workload.model), self.device.torch_device
        kind = call_kind(members, ROOT, args, kwargs, device)
        return any(kind.fits_in(planned) for planned in self.plan.dry.kinds)

    def try_pass(self, batch: Batch) -> None:
        """See that whoever computes layers computes a batch of other sizes, without gradients.

        Args:
            batch: as those of the workload.

        Raises:
            OpenwaferError: it does not, or has no room.
        """
        workload = replace(self.request.workload, batches=[batch], is_graded=False)
        request = replace(self.request, workload=workload)
        with unseen(workload):
            self.device.backend.try_step(dry_step_of(request, self.plan).run_by)

    @contextmanager
    def metering(self, held: Iterable[torch.Tensor]) -> Iterator[None]:
        """Context in which the device counts every byte, beside the tensors that it holds."""
        with self.device.forward_only():
            self.device.watch(held)
            yield

    @property
    def uses_disk(self) -> bool:
        """Whether any record has a part on disk."""
        return Tier.DISK in self.placement.tiers.values()

    @property
    def ring_bytes(self) -> int:
        """Bytes of the stores' rings, in which lie the weights of a device that is host memory."""
        return self.placement.ring_bytes + len(self.placements) * self._lent_bytes

    @cached_property
    def _lent_bytes(self) -> int:
        is_shared = self.uses_disk and not self.device.is_asynchronous
        return lent_bytes(self.plan) if is_shared else 0


def plan_run(
    workload: Workload,
    updater: Updater,
    given: PlanInput,
    *,
    folder: Path | None,
    weights: Iterable[torch.Tensor] = (),
) -> Planned:
    """Plan a run; create nothing. What several systems do with experts is planned as well.

    Args:
        workload: the model and a step with example batches; the parameters may be on the meta
            device.
        updater: the optimizer's rules over the model's parameters.
        given: see :class:`PlanInput`.
        folder: where a disk tier would be.
        weights: initial weights that the model itself does not hold.

    Raises:
        OpenwaferError: the run cannot fit; the message has the numbers. ``weights-written`` when
            the forward of a streamed model writes to weights, which would not reach the store;
            ``sparse-gradient`` for embeddings that make sparse gradients; ``experts-owners``.
    """
    given = _for_systems(given)
    plan_with = partial(_plan_run, workload, updater, folder=folder, weights=tuple(weights))
    names = expert_weights(workload.model, updater) if given.systems > 1 else {}
    if not names:
        if given.systems > 1 and given.experts is ExpertsWay.OWNERS:
            raise not_owned("no weight holds experts that its optimizer updates one by one")
        return plan_with(given)
    systems = given.systems, given.options.store_systems
    choice = ExpertChoice(workload, names, systems, given.experts)
    if choice.may_be_owned:
        planned = plan_with(replace(given, by_expert=True))
        uses_disk, norms = planned.uses_disk, given.keeps_gradients
        traffic = choice.owned(planned.plan, uses_disk=uses_disk, norms=norms)
        if traffic is not None:
            return planned.with_experts(traffic)
    planned = plan_with(given)
    return replace(planned, expert_traffic=choice.fetched(planned.plan))


def _plan_run(
    workload: Workload,
    updater: Updater,
    given: PlanInput,
    *,
    folder: Path | None,
    weights: Iterable[torch.Tensor],
) -> Planned:
    workload = replace(workload, meets_others=given.systems > 1)
    device, model = given.make_device(), workload.model
    check_is_dense(model)
    mode = _mode(given, updater, device)
    given = replace(given, options=replace(given.options, mode=mode))
    split_at = _split_that_fits(model, updater, given, folder=folder)
    request = _request(workload, updater, given, device, split_at(), folder)
    with unseen(workload):
        plan = make_plan(request, split_at)
    if given.systems > 1:
        refuse_systems(plan)
    refuse_uses(model, plan)
    with unseen(workload):
        walk = dry_step_of(request, plan).run_by
        check_kernels(plan.split, model, device.backend, walk)
    speculates = given.keeps_gradients and request.timing is UpdateTiming.ON_PUSH
    owners = owners_of(plan.layouts, given.systems, given.options.store_systems)
    shares = _shares(plan.layouts, given, plan.mode, has_folder=folder is not None)
    placements = tuple(place(share, host, speculates=speculates) for share, host in shares)
    if Tier.DISK not in merged(placements).tiers.values():
        # What is in DRAM alone cannot be undone.
        plan, request = plan.timed(given.timing), replace(request, timing=given.timing)
    again = replace(request, workload=replace(workload, model=bare_copy(model)))
    beside_bytes = resident_beside((*model.parameters(), *weights))
    return Planned(
        plan=plan,
        owners=owners,
        placements=placements,
        updater=updater,
        device=device,
        given=given,
        workload=workload,
        folder=folder,
        request=again,
        beside_bytes=beside_bytes,
        expert_traffic=None,
    )


def _request(
    workload: Workload,
    updater: Updater,
    given: PlanInput,
    device: Device,
    split: Partition,
    folder: Path | None,
) -> PlanRequest:
    lay_out = _lay_out(workload.model, updater, given)
    layouts: Mapping[str, RecordLayout] = lay_out(split)
    return PlanRequest(
        workload=workload,
        split=split,
        lay_out=lay_out,
        torch_device=device.torch_device,
        budget_bytes=given.device_memory_bytes,
        timing=_timing(given, layouts.values(), device, folder),
        resident_state_bytes=_resident_state_bytes(layouts.values(), updater, device)
        + workload.held_gradients.more_while_resident(split),
        overhead_bytes=device.overhead_bytes + workload.held_gradients.while_streaming(split),
        overlaps=_overlaps(device, given),
        mode=given.options.mode,
        activations=given.options.activations,
        default_activations=given.options.default_activations,
        prefetch_layers=given.options.prefetch_layers,
        most_layer_calls=given.options.most_layer_calls,
    )


def _shares(
    layouts: Mapping[str, RecordLayout],
    given: PlanInput,
    mode: Mode | None,
    *,
    has_folder: bool,
) -> list[tuple[Mapping[str, RecordLayout], HostBudget]]:
    """The records of each rank that has a store, with what that may use on its host."""
    owners = owners_of(layouts, given.systems, given.options.store_systems)
    hosts = _hosts(given)
    shares = [share_of(layouts, owners, rank) for rank in range(len(hosts))]
    held = [sum(layout.num_bytes for layout in share.values()) for share in shares]
    budgets = fair_bytes(hosts, given.options.host_memory_bytes, held)
    tier = StoreTier.DRAM if mode is Mode.RESIDENT else given.options.tier
    return [
        (share, HostBudget(tier, budget, has_folder))
        for share, budget in zip(shares, budgets, strict=True)
    ]


def split_that_fits(
    model: nn.Module, updater: Updater, given: PlanInput, *, folder: Path | None
) -> SplitAt:
    """Splits of a run's model whose records have room on the host; for arguments see `plan_run`.

    Raises:
        OpenwaferError: ``store-too-large`` and ``host-memory-too-small``, without a walk.
    """
    return _split_that_fits(model, updater, _for_systems(given), folder=folder)


def _split_that_fits(
    model: nn.Module, updater: Updater, given: PlanInput, *, folder: Path | None
) -> SplitAt:
    may_slice = given.by_expert and given.options.mode is not Mode.RESIDENT
    sliced = expert_weights(model, updater) if may_slice else {}
    any_split = _any_split(model, given.options, sliced)
    lay_out = _lay_out(model, updater, given)

    def shares(split: Partition) -> list[tuple[Mapping[str, RecordLayout], HostBudget]]:
        return _shares(lay_out(split), given, given.options.mode, has_folder=folder is not None)

    return split_for_host(model, any_split, shares)


def _for_systems(given: PlanInput) -> PlanInput:
    """Options that hold for several ranks, where there are several.

    Which experts a rank uses depends on its tokens, and all ranks fetch the same. No rank undoes
    what another one has seen.
    """
    if given.options.mode is Mode.PIPELINED:
        raise error(
            "pipelined-loop",
            "mode is pipelined, and a loop of your own runs on one system, which has no stages",
            help="leave mode out, or train by openwafer.Session and openwafer train",
        )
    if given.systems == 1:
        return given
    if given.options.mode is Mode.RESIDENT:
        raise error(
            "systems-resident",
            f"streaming.mode is resident, and the weights of {given.systems} systems stream",
            help="leave streaming.mode out",
        )
    streaming = replace(given.options, mode=Mode.STREAMED)
    return replace(given, options=streaming, by_expert=False, may_speculate=False)


def _has_own_memory(device: Device) -> bool:
    return device.torch_device.type != "cpu"


def _overlaps(device: Device, given: PlanInput) -> bool:
    # What goes to other ranks is a copy, as what goes to a device with memory of its own.
    return device.is_asynchronous or given.systems > 1


def _lay_out(
    model: nn.Module, updater: Updater, given: PlanInput
) -> Callable[[Partition], Mapping[str, RecordLayout]]:
    return partial(
        lay_out_records,
        parameters=dict(model.named_parameters()),
        state_arrays=updater.state_arrays,
        keeps_gradients=given.keeps_gradients,
    )


def assemble(
    model: nn.Module,
    planned: Planned,
    *,
    folder: Path | None,
    weights: Mapping[str, torch.Tensor] | None = None,
    replicas: Replicas | None = None,
) -> Execution:
    """Create the store of a planned run and move the model's weights into it.

    The model's parameters give up their memory.

    Args:
        model: of the plan.
        planned: the plan.
        folder: used only by a plan that uses disk.
        weights: initial weights by name, fp32 for masters; ``None`` takes those of the model.
        replicas: the ranks of the run, where there are several.
    """
    if weights is None:
        check_own_memory(model)
    with closed_on_error(create_store(planned, folder)) as store:
        records = records_of(store, planned.layouts, replicas)
        write_weights(records, dict(model.named_parameters()) if weights is None else weights)
        planned.updater.initialise(records)
        return execute(model, planned, store, replicas)


def create_store(planned: Planned, folder: Path | None) -> ParameterStore:
    """The first rank's store, all zero. ``folder`` is used only by a plan that uses disk."""
    return planned.share(FIRST_RANK).create(folder, planned.given.options.store)


def reopen(
    model: nn.Module,
    planned: Planned,
    *,
    folder: Path,
    replicas: Replicas | None = None,
    step: int | None = None,
) -> Execution:
    """Open the store of an earlier run at its last commit, or at a step of it, as planned.

    The records must be those of the plan (``planned.plan.layouts``); a run planned with others
    takes the checkpoint's way. The caller restores ``planned.updater.counts`` from the state.
    """
    share = planned.share(FIRST_RANK)
    with closed_on_error(share.open(folder, planned.given.options.store, step)) as store:
        return execute(model, planned, store, replicas)


def execute(
    model: nn.Module, planned: Planned, store: ParameterStore, replicas: Replicas | None = None
) -> Execution:
    """Execute a plan over a store that holds the model's records."""
    dtype = planned.workload.autocast_dtype
    context = StepContext(planned.updater, planned.device, dtype, replicas)
    if _has_own_memory(planned.device):
        for buffer in model.buffers():
            # The same tensor object, so that whoever holds it sees the values of training.
            buffer.data = buffer.to(planned.device.torch_device)
    is_streamed = planned.plan.mode is Mode.STREAMED
    if not is_streamed and (replicas is None or replicas.stage is None):
        kind = DeviceResidentExecution if _has_own_memory(planned.device) else ResidentExecution
        return kind(model, store, context)
    execution = execute_by(planned.contract, model, store, context)
    if isinstance(execution, StreamedExecution):
        watch, copied = execution.executor.watch, planned.request.workload.model

        def adopt(plan: StreamPlan) -> None:
            execution.adopt(plan)
            watch.hold_to(planned.contract_by(plan))

        backend = planned.device.backend
        watch.admit = Admission(copied, planned.request, planned.plan, backend, adopt)
    return execution


def execute_by(
    contract: StepContract, model: nn.Module, store: ParameterStore, context: StepContext
) -> StreamedExecution | StageExecution:
    """Execute a contract over the store of one rank: its stage, or weights that stream.

    Args:
        contract: what all ranks of the run go by.
        model: its parameters need no values where they are fetched.
        store: has the records of this rank, if any.
        context: what steps run under.
    """
    if context.replicas is not None and context.replicas.stage is not None:
        stage: StageExecution = context.replicas.stage(model, store, context)
        return stage
    execution = StreamedExecution(model, contract.plan, store, context)
    execution.executor.watch.hold_to(contract)
    return execution


def _mode(given: PlanInput, updater: Updater, device: Device) -> Mode | None:
    if device.backend is not TORCH:
        if given.options.mode not in (None, Mode.STREAMED):
            raise error(
                "backend-mode",
                f"a backend of its own computes layers whose weights stream, and mode is "
                f"{given.options.mode}",
                help="leave the mode to the plan, or the backend out",
            )
        return Mode.STREAMED
    if not (updater.keeps_masters and _has_own_memory(device)):
        return given.options.mode
    if given.options.mode is Mode.RESIDENT:
        raise error(
            "resident-masters",
            f"fp32 masters of bf16 weights are updated in host memory, and resident weights "
            f"would stay on {device.torch_device}",
            help="leave the mode to the plan, or keep fp32 weights",
        )
    return Mode.STREAMED


def _resident_state_bytes(layouts: Iterable[RecordLayout], updater: Updater, device: Device) -> int:
    states = sum(layout.part_bytes(Part.STATES) for layout in layouts)
    return states + (foreach_bytes(updater.optimizers) if _has_own_memory(device) else 0)


def _timing(
    given: PlanInput,
    layouts: Iterable[RecordLayout],
    device: Device,
    folder: Path | None,
) -> UpdateTiming:
    """When records are updated: as gradients arrive also where that may have to be undone.

    What is undone is run again, so a step has to repeat its bits, as it does on the CPU.
    """
    repeats = not _has_own_memory(device) or torch.are_deterministic_algorithms_enabled()
    if not (given.may_speculate and repeats and folder is not None):
        return given.timing
    num_bytes = sum(layout.part_bytes(part) for layout in layouts for part in Part)
    uses_disk = given.options.tier is StoreTier.DISK or (
        given.options.tier is StoreTier.AUTO
        and num_bytes > sum(fair_bytes(_hosts(given), given.options.host_memory_bytes, [1]))
    )
    return UpdateTiming.ON_PUSH if uses_disk else given.timing


def _hosts(given: PlanInput) -> tuple[HostMemory, ...]:
    """What the host of each rank has that has a store."""
    num_stores = given.systems if given.options.store_systems is StoreSystems.ALL else 1
    here = HostMemory("here", psutil.virtual_memory().available)
    return given.hosts or (here,) * num_stores


def _any_split(model: nn.Module, options: StreamOptions, sliced: Mapping[str, int]) -> SplitAt:
    return partial(
        partition,
        model,
        patterns=options.layers,
        min_layer_bytes=options.min_layer_bytes,
        sliced=sliced,
    )
