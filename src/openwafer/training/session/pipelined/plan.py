"""Plans the stages of a run, on the plan of one system that has all of it."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import psutil
import torch
from torch import nn

from openwafer.config import Bytes
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.collectives.reduced_sums import Reduction
from openwafer.training.plan_record import Activations, ExpertsWay, Mode
from openwafer.training.session.building import plan_input
from openwafer.training.session.config import RunConfig
from openwafer.training.session.pipelined.flows import Flows, outer_layers
from openwafer.training.session.systems import MeasuredSystems, blocks_of
from openwafer.training.store import StoreOptions
from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.layers import PINNED, Partition, partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.machine import operators_seconds
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.plan.refusals import shared_state
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.replicas.ownership import HOST_SHARE, HostMemory, bytes_of_hosts
from openwafer.training.stream.stages.flow import Flow
from openwafer.training.stream.stages.host_rooms import HostRooms
from openwafer.training.stream.stages.stage_module import passed_forms
from openwafer.training.stream.stages.stage_plan import StageRequest, plan_stages
from openwafer.training.stream.stages.staged import Staged

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
    return replace(planned, stages=Staged(plan_stages(asked), asked, flows))


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
    refused = refused_option(config)
    if refused is not None:
        raise not_in_stages(*refused)


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
