"""Gradients of a rank among others leave the device when they are pushed.

A sum takes them when it is their turn, which may be much later where the network is slow. A plan
knows nothing of that: it sets room aside for gradients until their record is complete.
"""

from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.replicas.replica_link import ReplicaLink, Replicas
from openwafer.training.stream.schedule import Kind


def push_in_turn(executor: Executor, link: ReplicaLink, replicas: Replicas) -> None:
    """Push from host memory, micro-batches apart on a rank whose sums begin elsewhere."""
    gradients = executor.gradients
    gradients.keeps_parts, gradients.is_share = replicas.adds_in_turn, True

    def push(record: str) -> None:
        executor.log.executed.append((Kind.PUSH, record))
        parts = gradients.take_parts(record)
        with executor.device.host_section():
            link.push_parts(record, parts)

    executor.push = push
