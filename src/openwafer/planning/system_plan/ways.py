"""The ways in which a system could train, with the memory and the time that each takes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from openwafer.planning.memory import (
    RESIDENT_BYTES_PER_WEIGHT,
    Sharding,
    sharded_bytes,
    store_bytes,
)
from openwafer.planning.placement import PipelineTask, least_step
from openwafer.planning.system_plan.training_task import Activations, TrainingTask
from openwafer.planning.systems import System
from openwafer.planning.throughput import Resource, Setting, StepTime, step_time
from openwafer.planning.throughput.passes import DENSE_BYTES, TAGGED_BYTES

INDEX_BYTES = TAGGED_BYTES - DENSE_BYTES
PASSING_LAYERS = 2
"""Layers whole in a memory that they only pass through: one at work, one on its way."""


class Mode(StrEnum):
    """The ways in which weights and cores meet."""

    RESIDENT = "resident"
    SHARDED_STATES = "resident, states sharded (ZeRO-1)"
    SHARDED_GRADIENTS = "resident, gradients and states sharded (ZeRO-2)"
    SHARDED_WEIGHTS = "resident, weights, gradients and states sharded (ZeRO-3, FSDP)"
    PIPELINED = "layer-pipelined"
    STREAMED = "weight streaming"

    @property
    def sharding(self) -> Sharding:
        """What systems deal among themselves."""
        return {
            Mode.SHARDED_STATES: Sharding.STATES,
            Mode.SHARDED_GRADIENTS: Sharding.GRADIENTS,
            Mode.SHARDED_WEIGHTS: Sharding.WEIGHTS,
        }.get(self, Sharding.NONE)


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        mode: the way in which weights and cores meet.
        activations: whether they are kept, recomputed or moved away.
        weights_bytes: bytes beside the cores: weights with their gradients and states, or the
            layers that stream through.
        activations_bytes: bytes beside the cores for the sequences that are at work.
        pass_sequences: most sequences of a pass on one system.
        time: time of a step.
        replicas: copies of the model on one system.
    """

    mode: Mode
    activations: Activations
    weights_bytes: float
    activations_bytes: float
    pass_sequences: int
    time: StepTime
    replicas: int = 1


def resident_bytes(task: TrainingTask) -> float:
    """Of all weights, gradients and states of Adam; sparse ones with an index each."""
    kept = task.model.kept(task.sparsity)
    sparse = task.model.sparse_parameters * (1 - task.sparsity) if task.sparsity else 0.0
    return RESIDENT_BYTES_PER_WEIGHT * kept + INDEX_BYTES * sparse


def modes(system: System, num_systems: int) -> Iterator[Mode]:
    """In which so many systems could train, those first that move least."""
    if system.fabric is not None:
        if system.simulated is None:
            yield Mode.PIPELINED
    else:
        yield Mode.RESIDENT
        if num_systems > 1:
            yield from (Mode.SHARDED_STATES, Mode.SHARDED_GRADIENTS, Mode.SHARDED_WEIGHTS)
    if system.streams_weights:
        yield Mode.STREAMED


def weights_bytes(task: TrainingTask, system: System, num_systems: int, mode: Mode) -> float:
    """Beside the cores of one system: what it holds of weights, gradients and states.

    A wafer takes streamed weights from its link one by one. A GPU has layers on their way and their
    gradients, also where it holds shards of these.
    """
    kept = task.model.kept(task.sparsity)
    passing = PASSING_LAYERS * DENSE_BYTES * kept / task.model.layers
    if mode is Mode.STREAMED:
        return 0.0 if system.fabric is not None else 2 * passing
    sharding = mode.sharding
    whole = resident_bytes(task)
    if sharding is Sharding.NONE:
        return whole
    indices = whole - RESIDENT_BYTES_PER_WEIGHT * kept
    if sharding is Sharding.WEIGHTS:
        indices /= num_systems
    held = sharded_bytes(sharding, num_systems) * kept + indices
    return held + passing * (sharding - Sharding.STATES)


def has_store(task: TrainingTask, system: System, num_systems: int) -> bool:
    """Whether the parameter store of so many systems has room, as far as anybody says."""
    room = system.store_bytes(num_systems)
    return room is None or store_bytes(task.model.kept(task.sparsity)) <= room


def ways(task: TrainingTask, system: System, num_systems: int) -> Iterator[Way]:
    """All ways that memory has room for, those first that move least."""
    for mode in modes(system, num_systems):
        if mode is Mode.PIPELINED:
            yield from _pipelined(task, system, num_systems)
            continue
        held = weights_bytes(task, system, num_systems, mode)
        for activations in Activations:
            yield from _in_passes(task, system, num_systems, _Room(mode, activations, held))


@dataclass(frozen=True)
class _Room:
    mode: Mode
    activations: Activations
    weights_bytes: float


def _in_passes(task: TrainingTask, system: System, num_systems: int, room: _Room) -> Iterator[Way]:
    """Micro-batches one after the other, as large as memory lets them be."""
    own = math.ceil(task.batch_size / num_systems)
    sequence_bytes = task.sequence_length * task.activation_bytes(room.activations)
    fitting = math.floor((system.memory.value - room.weights_bytes) / sequence_bytes)
    if fitting < 1:
        return
    micro_batches = math.ceil(own / fitting)
    setting = setting_of(task, system, room.mode, room.activations)
    tokens = own * num_systems * task.sequence_length
    time = step_time(system, task.model, tokens, setting, num_systems, micro_batches)
    at_work = math.ceil(own / micro_batches)
    yield Way(
        room.mode,
        room.activations,
        room.weights_bytes,
        at_work * sequence_bytes,
        fitting,
        time,
    )


def _pipelined(task: TrainingTask, system: System, num_systems: int) -> Iterator[Way]:
    """Every layer on cores of its own, sequences streaming through them one behind the other.

    As fast as no floor plan is: what `planning.placement` comes close to.
    """
    own = math.ceil(task.batch_size / num_systems)
    pipeline = _pipeline(task, own)
    bound = least_step(pipeline, system) if pipeline.layers else None
    if bound is None:
        return
    weights = bound.replicas * sum(layer.state_bytes for layer in pipeline.layers)
    activations = Activations(str(bound.recomputing))
    setting = setting_of(task, system, Mode.PIPELINED, activations)
    tokens = own * num_systems * task.sequence_length
    sequences = pipeline.sequences(bound.replicas)
    time = step_time(system, task.model, tokens, setting, num_systems, sequences)
    time = replace(time, stretch=pipeline.stretch(bound.replicas))
    share = bound.seconds / (time.stretch * time.busy_seconds(Resource.COMPUTE))
    yield Way(
        Mode.PIPELINED,
        activations,
        weights,
        bound.held_bytes - weights,
        bound.replicas,
        time.computing(share),
        bound.replicas,
    )


def _pipeline(task: TrainingTask, sequences: int) -> PipelineTask:
    """The layers, zeros left out of products, sums and states as if all had the same share."""
    done = 1 - task.sparsity * task.model.sparse_share
    held = resident_bytes(task) / (RESIDENT_BYTES_PER_WEIGHT * task.model.parameters)
    layers = tuple(
        replace(
            load,
            forward_flops=done * load.forward_flops,
            backward_flops=done * load.backward_flops,
            features=done * load.features,
            state_bytes=held * load.state_bytes,
        )
        for load in task.loads
    )
    return PipelineTask(layers, sequences, task.sequence_length)


def setting_of(task: TrainingTask, system: System, mode: Mode, activations: Activations) -> Setting:
    """How a system trains a task: its cores as busy as in the training that is known of it."""
    return Setting(
        system.busy_share,
        task.sparsity,
        is_resident=mode is not Mode.STREAMED,
        forwards_again=activations.forwards_again,
        sharding=mode.sharding,
    )
