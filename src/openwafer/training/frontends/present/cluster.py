"""What scripts ask of the tasks of a cluster, and of the samples that each has had: one has all."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from openwafer.training.frontends.present import backends

__all__ = [
    "ClusterSpec",
    "DataLoaderCheckpoint",
    "TaskSpec",
    "get_worker_state",
    "service_resolver",
]


@dataclass
class TaskSpec:
    """A process that makes batches: its number in all, on its machine, and its system's."""

    rank: int = 0
    local_rank: int = 0
    wse_id: int = 0
    node_name: str = "localhost"


@dataclass
class ClusterSpec:
    """All such processes, the number of this one, the systems, and processes for each."""

    tasks: list[TaskSpec] = field(default_factory=lambda: [TaskSpec()])
    rank: int = 0
    num_csx: int = 1
    num_workers_per_csx: int = 1

    def num_tasks(self) -> int:
        """How many processes make batches."""
        return len(self.tasks)

    def task(self, rank: int | None = None) -> TaskSpec:
        """One of them; this one without a number."""
        return self.tasks[self.rank if rank is None else rank]


def service_resolver() -> SimpleNamespace:
    """What knows all processes: its ``cluster_spec`` is of this one."""
    return SimpleNamespace(cluster_spec=ClusterSpec())


@dataclass
class DataLoaderCheckpoint:
    """How far the batches of a loader are, for its ``state_dict``.

    Attributes:
        appliance_step, worker_step: steps that the loop has begun.
        samples_streamed: samples of their batches.
    """

    appliance_step: int
    worker_step: int
    samples_streamed: int
    global_worker_id: int = 0
    local_worker_id: int = 0
    total_num_workers: int = 1
    num_workers_per_csx: int = 1
    num_csx: int = 1
    wse_id: int = 0


def get_worker_state() -> DataLoaderCheckpoint:
    """How far the loop over the executor is; at its beginning where there is none."""
    backend = backends.current("cstorch.distributed.get_worker_state")
    executor = backend.executor
    if executor is None:
        return DataLoaderCheckpoint(0, 0, 0)
    steps = executor.user_iteration
    return DataLoaderCheckpoint(steps, steps, executor.samples_streamed)
