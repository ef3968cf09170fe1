"""What hosts have for the stages of a run."""

from typing import Final

import psutil
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.session.config import RunConfig
from openwafer.training.session.systems import MeasuredSystems
from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.replicas.ownership import HOST_SHARE, HostMemory, bytes_of_hosts
from openwafer.training.stream.stages.host_rooms import HostRooms

GIVEN: Final = "streaming.host_memory says how much"
MEASURED: Final = f"that is {HOST_SHARE:.0%} of what is free there"


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
    layouts = lay_out_records(
        partition(model, patterns=config.streaming.layers, min_layer_bytes=0),
        parameters=dict(model.named_parameters()),
        state_arrays=updater.state_arrays,
        keeps_gradients=False,
    )
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
