"""Gradients of a rank that adds to a running sum: those of each micro-batch leave by themselves."""

from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.replicas.replica_link import ReplicaLink, Replicas
from openwafer.training.stream.schedule import Kind


def push_in_turn(executor: Executor, link: ReplicaLink, replicas: Replicas) -> None:
    """Keep micro-batches' gradients apart, on a rank whose sums begin elsewhere."""
    if not replicas.adds_in_turn:
        return

    def push(record: str) -> None:
        executor.log.executed.append((Kind.PUSH, record))
        link.push_parts(record, executor.gradients.take_parts(record))

    executor.gradients.keeps_parts = True
    executor.push = push
