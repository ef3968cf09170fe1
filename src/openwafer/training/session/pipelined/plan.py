"""Plans the stages of a run, on the plan of one system that has all of it.

Where the config leaves open whether several systems stream or have stages, both ways are planned,
and the one whose step is predicted to be shorter is taken. Bits do not depend on it: a run goes on
in the way that was chosen while it has as many systems.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import psutil
import torch
from torch import nn

from openwafer.config import Bytes
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.plan_record import Activations, ExpertsWay, Mode, ModeChoice, PlanRecord
from openwafer.training.session.building import ToPlan, plan_input
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import Inputs, ModelForward
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.systems import MeasuredSystems, blocks_of
from openwafer.training.store import StoreOptions
from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.layers import PINNED, Partition, partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.admission import bare_copy
from openwafer.training.stream.plan.machine import operators_seconds
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.refusals import shared_state
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.replicas.ownership import HOST_SHARE, HostMemory, bytes_of_hosts
from openwafer.training.stream.stages.flow import Flow, flow_of
from openwafer.training.stream.stages.stage_pass import passed_forms
from openwafer.training.stream.stages.stage_plan import HostRooms, Staged, StageRequest, plan_stages
from openwafer.training.stream.stream_options import FABRIC

Kind = tuple[object, ...]


class Flows:
    """Flows that are walked once for each kind of inputs.

    Args:
        workload: of the run; a copy of its model is walked, so that it may be in use.
        layers: names of the layers that are told apart.
    """

    def __init__(self, workload: Workload, layers: Sequence[str]) -> None:
        self._workload = replace(workload, model=bare_copy(workload.model))
        self._layers = layers
        self._known: dict[Kind, Flow] = {}

    def __call__(self, forward: Forward) -> Flow:
        """The flow of a forward of the run's model."""
        assert isinstance(forward, ModelForward)
        return self.of(forward.inputs, is_training=forward.model.training)

    def of(self, inputs: Inputs, *, is_training: bool = True) -> Flow:
        """The flow of a micro-batch."""
        kind: Kind = (
            is_training,
            *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()),
        )
        if kind not in self._known:
            self._workload.model.train(is_training)
            self._known[kind] = flow_of(self._workload, inputs, self._layers, torch.device("cpu"))
        return self._known[kind]


def outer_layers(split: Partition) -> tuple[str, ...]:
    """The layers that no other layer calls."""
    return tuple(layer.name for layer in split.modules if layer.parent is None)


GIVEN: Final = "streaming.host_memory says how much"
MEASURED: Final = f"that is {HOST_SHARE:.0%} of what is free there"


def is_pipelined(config: RunConfig) -> bool:
    """Whether the systems of a run have a stage each; one alone has no stages."""
    return config.streaming.mode is Mode.PIPELINED and config.systems > 1


def num_stages_of(config: RunConfig) -> int:
    """Stages of a run that is pipelined.

    Raises:
        OpenwaferError: ``pipelined-replicas`` where they leave a replica without some.
    """
    num_stages, systems = config.streaming.stages or config.systems, config.systems
    if systems % num_stages:
        raise error(
            "pipelined-replicas",
            f"there are {systems} systems, and each replica of the pipeline takes {num_stages} "
            "of them (streaming.stages)",
            help=f"use a multiple of {num_stages} systems, or set streaming.stages to a divisor "
            f"of {systems}, or leave it out for one replica",
        )
    return num_stages


def as_one_system(config: RunConfig) -> RunConfig:
    """The run on one system with all the memory it needs, by which its stages are planned."""
    if not is_pipelined(config):
        return config
    streaming = replace(
        config.streaming,
        mode=Mode.RESIDENT,
        stages=None,
        store=StoreTier.DRAM,
        host_memory=Bytes(sys.maxsize),
    )
    return replace(config, systems=1, device_memory=None, streaming=streaming)


def in_stages(planned: Planned, config: RunConfig, rooms: HostRooms) -> Planned:
    """Cut the model of a plan, which is that of :func:`as_one_system`, into the run's stages.

    Args:
        planned: the plan of one system.
        config: of the run.
        rooms: what the hosts of the systems have.

    Raises:
        OpenwaferError: what stages cannot do, by name, and what :func:`plan_stages` raises.
    """
    num_micro_batches, num_stages = config.batch.most_micro_batches, num_stages_of(config)
    blocks_of(num_micro_batches, config.systems)
    refuse(planned, config)
    model, device = planned.workload.model, planned.device.torch_device
    split = partition(model, patterns=config.streaming.layers, min_layer_bytes=0)
    flows = Flows(planned.workload, outer_layers(split))
    [inputs, *_] = planned.workload.batches
    assert isinstance(inputs, dict)
    flow = flows.of(inputs)
    split = _one_by_one(split)
    seconds = [
        operators_seconds(one.calls, device, allocation=planned.workload.allocation)
        for one in flow.segments
    ]
    asked = StageRequest(
        flow=flow,
        split=split,
        layouts=_layouts_of(split, model, planned.updater),
        seconds=seconds,
        passing_bytes=[_passing_bytes(flow, cut) for cut in range(len(flow.calls))],
        num_stages=num_stages,
        blocks=tuple(map(len, blocks_of(num_micro_batches, config.systems // num_stages))),
        received=frozenset(planned.plan.dry.received),
        budget_bytes=config.device_memory,
        rooms=rooms,
    )
    stages = plan_stages(asked)
    return replace(planned, owners=stages.ownership.owners, stages=Staged(stages, asked, flows))


def _layouts_of(split: Partition, model: nn.Module, updater: Updater) -> Mapping[str, RecordLayout]:
    return lay_out_records(
        split,
        parameters=dict(model.named_parameters()),
        state_arrays=updater.state_arrays,
        keeps_gradients=False,
    )


def _one_by_one(split: Partition) -> Partition:
    """The same layers with a record for each weight that is in none, as stages may share them."""
    records: dict[str, tuple[str, ...]] = {}
    for record, names in split.records.items():
        if record == PINNED:
            records |= {name: (name,) for name in names}
        else:
            records[record] = names
    return Partition(split.layers, records)


def _passing_bytes(flow: Flow, cut: int) -> int:
    return sum(
        torch.Size(form.shape).numel() * form.dtype.itemsize for form in passed_forms(flow, cut)
    )


def refuse(planned: Planned, config: RunConfig) -> None:
    """Refuse what a run in stages cannot do."""
    plan_input(config, StoreOptions()).make_device()
    if planned.plan.changed:
        raise shared_state(planned.plan.changed, "a stage sees what its own layers change")


def require_stages(config: RunConfig) -> None:
    """Refuse a config that asks of stages what they cannot do; its model need not be planned.

    Raises:
        OpenwaferError: ``pipelined-option`` and ``pipelined-replicas``, and what
            :func:`~openwafer.training.session.systems.blocks_of` raises.
    """
    refused = refused_option(config)
    if refused is not None:
        raise not_in_stages(*refused)
    num_stages_of(config)
    blocks_of(config.batch.most_micro_batches, config.systems)


def refused_option(config: RunConfig) -> tuple[str, str] | None:
    """An option that is set and that stages cannot do, and why."""
    streaming = config.streaming
    asked = (
        (bool(config.batch.schedule), "batch.schedule", "stages pass as many micro-batches a step"),
        (config.shares_store, "store_systems", "each stage has the records of its layers"),
        (config.reduction is Reduction.FAST, "reduction", "no gradients are added over stages"),
        (streaming.store is StoreTier.DISK, "streaming.store", "weights and states stay in memory"),
        (_recomputes(config), "streaming.activations", "stages keep their activations"),
        (
            streaming.experts is ExpertsWay.OWNERS,
            "streaming.experts",
            "each stage has the experts of its layers",
        ),
        *((bool(each.not_in_stages), each.key, each.not_in_stages) for each in config.methods()),
    )
    return next(((key, reason) for is_asked, key, reason in asked if is_asked), None)


def _recomputes(config: RunConfig) -> bool:
    chosen = config.streaming.activations
    policies = chosen.values() if isinstance(chosen, dict) else (chosen,)
    return any(one not in (None, Activations.KEEP) for one in policies)


def not_in_stages(key: str, reason: str) -> OpenwaferError:
    """What refuses something that stages cannot do."""
    return error(
        "pipelined-option",
        f"{key} is set and streaming.mode is pipelined: {reason}",
        help=f"leave {key} out, or streaming.mode",
    )


def rooms_of(config: RunConfig, measured: MeasuredSystems | None) -> HostRooms:
    """What the hosts of all systems have; one like this each where the systems have not met."""
    given = config.streaming.host_memory
    if measured is None:
        free = psutil.virtual_memory().available
        names = [f"a host like this one, of rank {rank}," for rank in range(config.systems)]
        hosts = [HostMemory(name, free) for name in names]
    else:
        hosts = [HostMemory(f"host {host.name!r}", host.free_bytes) for host in measured.hosts]
    return HostRooms(
        tuple(host.name for host in hosts),
        bytes_of_hosts(hosts, given),
        MEASURED if given is None else GIVEN,
    )


def require_room(model: nn.Module, updater: Updater, config: RunConfig) -> None:
    """Refuse what no hosts like this one have room for, with the model's shapes alone.

    Raises:
        OpenwaferError: ``pipelined-memory``.
    """
    rooms = rooms_of(config, None)
    split = partition(model, patterns=config.streaming.layers, min_layer_bytes=0)
    layouts = _layouts_of(split, model, updater)
    needed = sum(layout.num_bytes for layout in layouts.values())
    room = sum(rooms.room_bytes.values())
    if needed > room:
        raise error(
            "pipelined-memory",
            f"weights and optimizer states need {needed:,} bytes, and {config.systems} hosts like "
            f"this one have {room:,} bytes for them",
            notes=(rooms.source,),
            help="use more hosts, free memory, set streaming.host_memory, or leave streaming.mode "
            "out",
        )


UNMEASURED = (
    "how fast weights pass between the systems is measured when they meet, and stages are "
    "compared with it then"
)


def is_left_to_plan(config: RunConfig) -> bool:
    """Whether the plan chooses between streaming and stages."""
    # Weights stream to each wafer, whatever would be faster.
    is_fabric = config.streaming.device == FABRIC
    return config.systems > 1 and config.streaming.mode is None and not is_fabric


def with_stages(config: RunConfig, num_stages: int) -> RunConfig:
    """The same run in so many stages."""
    streaming = replace(config.streaming, mode=Mode.PIPELINED, stages=num_stages)
    return replace(config, streaming=streaming)


def _cut(parts: ToPlan, whole: Planned, config: RunConfig) -> Planned:
    """The plan of one system in the stages of a config, which fit the hosts of its systems."""
    return in_stages(whole, config, rooms_of(config, parts.measured))


def _planned(parts: ToPlan, config: RunConfig) -> Planned:
    """The plan of a config that says how several systems share the work, or streams."""
    if not is_pipelined(config):
        return parts.planned(config)
    require_stages(config)
    return _cut(parts, parts.planned(as_one_system(config)), config)


def plan_of_before(folder: RunFolder) -> PlanRecord | None:
    """What was planned when the run in a folder began or went on last, where that can be read."""
    if folder.config.is_file():
        with suppress(OpenwaferError):
            return PLAN.read(folder.path)
    return None


def plan_systems(parts: ToPlan, config: RunConfig, folder: RunFolder) -> Planned:
    """Plan a run of several systems, in the way that is chosen where its config leaves it open.

    Raises:
        OpenwaferError: what the plan raises, of streaming where neither way is possible.
    """
    if not is_left_to_plan(config):
        return _planned(parts, config)
    before = plan_of_before(folder)
    if before is not None and before.choice is not None and before.systems == config.systems:
        # What has changed since may leave no room for it.
        with suppress(OpenwaferError):
            return replace(_planned(parts, _as_before(config, before)), choice=before.choice)
    return _chosen(parts, config)


def _as_before(config: RunConfig, before: PlanRecord) -> RunConfig:
    if before.pipeline is None:
        return config
    return with_stages(config, len(before.pipeline.stages))


def _chosen(parts: ToPlan, config: RunConfig) -> Planned:
    try:
        streamed = _planned(parts, config)
    except OpenwaferError as failure:
        staged = _fastest_stages(parts, config)
        if isinstance(staged, str):
            raise
        reason = f"weights cannot stream: {_told(failure)}"
        choice = ModeChoice(None, staged.report.predicted_step_seconds, reason)
        return replace(staged, choice=choice)
    if parts.measured is None:
        return replace(streamed, choice=ModeChoice(None, None, UNMEASURED))
    staged = _fastest_stages(parts, config)
    if isinstance(staged, str):
        streaming = streamed.report.predicted_step_seconds
        reason = f"no stages are made: {staged}"
        return replace(streamed, choice=ModeChoice(streaming, None, reason))
    return _faster(streamed, staged)


def _faster(streamed: Planned, staged: Planned) -> Planned:
    streams, stays = streamed.report.predicted_step_seconds, staged.report.predicted_step_seconds
    if streams is None or stays is None:
        reason = "the time of a step is not predicted, so that stages cannot be compared"
        return replace(streamed, choice=ModeChoice(streams, stays, reason))
    choice = ModeChoice(streams, stays, "its predicted step is the shorter one")
    return replace(staged if stays < streams else streamed, choice=choice)


def _fastest_stages(parts: ToPlan, config: RunConfig) -> Planned | str:
    """The shortest step in stages, as many in a replica as there can be, or why there are none."""
    refused = refused_option(with_stages(config, config.systems)) or _streaming_option(config)
    if refused is not None:
        return f"{refused[0]} is set, and {refused[1]}"
    found, failures = [], []
    try:
        whole = parts.planned(as_one_system(with_stages(config, config.systems)))
        for num_stages in _numbers_of_stages(config.systems):
            asked = with_stages(config, num_stages)
            try:
                found.append(_cut(parts, whole, asked))
            except OpenwaferError as failure:
                failures.append(_told(failure))
    except OpenwaferError as failure:
        return _told(failure)
    if not found:
        return failures[-1]
    return min(found, key=lambda one: one.report.predicted_step_seconds or 0.0)


def _numbers_of_stages(num_systems: int) -> Iterator[int]:
    return (number for number in range(2, num_systems + 1) if num_systems % number == 0)


def _streaming_option(config: RunConfig) -> tuple[str, str] | None:
    """An option that only has a meaning where weights stream, and why."""
    if config.streaming.prefetch_layers is not None:
        return "streaming.prefetch_layers", "stages fetch no layers"
    if config.streaming.most_layer_calls is not None:
        return "streaming.most_layer_calls", "a stage calls each of its layers once"
    if config.streaming.link_per_second is not None:
        return "streaming.link_per_second", "no weights pass over a link to the device of a stage"
    return None


def _told(failure: OpenwaferError) -> str:
    return failure.diagnostics[0].message
