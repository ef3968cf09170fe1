"""What scripts ask of a cluster: here one process makes batches and computes."""

from dataclasses import dataclass, field
from typing import Any

from openwafer.training.frontends.present.cluster import get_worker_state, service_resolver
from openwafer.training.frontends.scripts.one_process import (
    get_ordinal,
    get_streaming_rank,
    is_master_ordinal,
    is_receiver,
    is_streamer,
    num_receivers,
    num_streamers,
    num_tasks,
)

__all__ = [
    "CSConfig",
    "ClusterConfig",
    "get_ordinal",
    "get_rank",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "get_worker_state",
    "get_world_size",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "service_resolver",
]


@dataclass
class ClusterConfig:
    """Where a cluster is and how much of it a run takes. It is taken, and nothing reads it."""

    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 0
    max_act_per_csx: int = 0
    num_workers_per_csx: int = 1
    cbcore_image: str | None = None
    job_labels: list[str] = field(default_factory=list)
    job_priority: str = "p2"
    job_time_sec: int | None = None
    mount_dirs: list[Any] = field(default_factory=list)
    python_paths: list[str] = field(default_factory=list)
    automount: bool = True
    mount_all: bool = True
    disable_mount_check: bool = True
    disable_version_check: bool = False
    workflow_id: str | None = None
    notifications: list[Any] = field(default_factory=list)


@dataclass
class CSConfig(ClusterConfig):
    """What scripts before the release 2.2 make in place of a :class:`ClusterConfig`."""

    debug_args: Any = None
    transfer_processes: int | None = None
    precision_opt_level: int = 1


def get_streaming_batch_size(effective_batch_size: int, global_rank: int | None = None) -> int:
    """Samples that a process puts into a batch: all of them."""
    return effective_batch_size


get_rank = get_ordinal
get_world_size = num_tasks
