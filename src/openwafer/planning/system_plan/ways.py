"""The ways in which a system could train, with the memory and the time that each takes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from openwafer.planning.memory import RESIDENT_BYTES_PER_WEIGHT
from openwafer.planning.system_plan.training_task import Activations, TrainingTask
from openwafer.planning.systems import System
from openwafer.planning.throughput import Setting, StepTime, step_time
from openwafer.planning.throughput.passes import DENSE_BYTES, TAGGED_BYTES

INDEX_BYTES = TAGGED_BYTES - DENSE_BYTES
STREAMED_LAYERS = 2
"""Layers at once on a system that streams weights into its memory: one at work, one on its way."""


class Mode(StrEnum):
    """How weights and cores come together."""

    RESIDENT = "resident"
    PIPELINED = "layer-pipelined"
    STREAMED = "weight streaming"


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        mode: how weights and cores come together.
        activations: what becomes of them.
        weights_bytes: beside the cores: weights with their gradients and states, or the layers
            that stream through.
        activations_bytes: beside the cores, of the sequences that are at work.
        pass_sequences: sequences of a pass on one system, at most.
        time: of a step.
    """

    mode: Mode
    activations: Activations
    weights_bytes: float
    activations_bytes: float
    pass_sequences: int
    time: StepTime


def resident_bytes(task: TrainingTask) -> float:
    """Of all weights, gradients and states of Adam; sparse ones with an index each."""
    kept = task.model.kept(task.sparsity)
    sparse = task.model.sparse_parameters * (1 - task.sparsity) if task.sparsity else 0.0
    return RESIDENT_BYTES_PER_WEIGHT * kept + INDEX_BYTES * sparse


def ways(task: TrainingTask, system: System, num_systems: int) -> Iterator[Way]:
    """All ways that memory has room for."""
    own = math.ceil(task.batch_size / num_systems)
    for activations in Activations:
        if system.fabric is not None:
            yield from _pipelined(task, system, num_systems, own, activations)
        else:
            yield from _in_passes(task, system, num_systems, own, _held(task, activations))
        if system.streams_weights:
            room = _streamed(task, system, activations)
            yield from _in_passes(task, system, num_systems, own, room)


@dataclass(frozen=True)
class _Room:
    mode: Mode
    activations: Activations
    weights_bytes: float


def _held(task: TrainingTask, activations: Activations) -> _Room:
    return _Room(Mode.RESIDENT, activations, resident_bytes(task))


def _streamed(task: TrainingTask, system: System, activations: Activations) -> _Room:
    """A wafer takes weights from its link one by one, a GPU keeps layers and their gradients."""
    kept = task.model.kept(task.sparsity) / task.model.layers
    held = 0.0 if system.fabric is not None else 2 * STREAMED_LAYERS * DENSE_BYTES * kept
    return _Room(Mode.STREAMED, activations, held)


def _in_passes(
    task: TrainingTask, system: System, num_systems: int, own: int, room: _Room
) -> Iterator[Way]:
    """Micro-batches one after the other, as large as memory lets them be."""
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


def _pipelined(
    task: TrainingTask, system: System, num_systems: int, own: int, activations: Activations
) -> Iterator[Way]:
    """Every layer on cores of its own, sequences streaming through them one behind the other.

    The schedule takes a backward as soon as there is one (Narayanan et al. 2021, arXiv 2104.04473,
    section 2.2).
    """
    if activations is Activations.BY_GROUPS:
        return
    layers = task.model.layers
    at_work = sequences_at_work(own, layers)
    inside = layers * task.layer_activation_bytes + task.other_activation_bytes
    token_bytes = at_work * inside
    if activations is Activations.BY_LAYER:
        token_bytes = min(at_work * layers * task.boundary_bytes + inside, token_bytes)
    held = token_bytes * task.sequence_length
    weights = resident_bytes(task)
    if weights + held > system.memory.value:
        return
    setting = setting_of(task, system, Mode.PIPELINED, activations)
    tokens = own * num_systems * task.sequence_length
    time = step_time(system, task.model, tokens, setting, num_systems, own)
    time = replace(time, stretch=(own + layers - 1) / own)
    yield Way(Mode.PIPELINED, activations, weights, held, 1, time)


def sequences_at_work(sequences: int, layers: int) -> float:
    """Sequences between forward and backward in a pipeline: the mean over its layers.

    A layer with j - 1 layers behind it holds j of them, or all there are.
    """
    most = min(sequences, layers)
    return most - most * (most - 1) / (2 * layers)


def setting_of(task: TrainingTask, system: System, mode: Mode, activations: Activations) -> Setting:
    """How a system trains a task: its cores as busy as in the training that is known of it."""
    return Setting(
        system.busy_share,
        task.sparsity,
        is_resident=mode is not Mode.STREAMED,
        forwards_again=activations.forwards_again,
    )
