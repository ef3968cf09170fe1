"""Which way a system trains, and what is refused."""

import math
from dataclasses import dataclass

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.planning.memory import store_bytes
from openwafer.planning.system_plan.training_task import Activations, TrainingTask
from openwafer.planning.system_plan.ways import Mode, Way, resident_bytes, ways
from openwafer.planning.systems import System

GIGABYTE = 1e9


@dataclass(frozen=True)
class Choice:
    """The way that was chosen, and why."""

    way: Way
    reason: str


def choose(task: TrainingTask, system: System, num_systems: int) -> Choice:
    """Hold the weights where they fit, or else stream them; the faster of keeping and recomputing.

    Raises:
        OpenwaferError: ``plan-systems`` for no or too many systems, ``plan-store`` for a model
            beyond the parameter store, ``plan-memory`` where not a single sequence fits.
    """
    _require_systems(task, system, num_systems)
    found = list(ways(task, system, num_systems))
    held = [way for way in found if way.mode is not Mode.STREAMED]
    if held:
        way = _fastest(held)
        return Choice(way, f"{_needs(way, system)}: weights stay")
    streamed = [way for way in found if way.mode is Mode.STREAMED]
    if not streamed:
        raise _too_large(task, system)
    _require_store(task, system)
    needed = resident_bytes(task) / GIGABYTE
    return Choice(
        _fastest(streamed),
        f"weights, gradients and states of {needed:,.4g} GB do not fit beside activations into "
        f"{system.memory.value / GIGABYTE:,.4g} GB: weights stream",
    )


def _fastest(found: list[Way]) -> Way:
    return min(found, key=lambda way: way.time.seconds)


def _needs(way: Way, system: System) -> str:
    needed = (way.weights_bytes + way.activations_bytes) / GIGABYTE
    return (
        f"weights, gradients, states and activations of {needed:,.4g} GB fit into "
        f"{system.memory.value / GIGABYTE:,.4g} GB"
    )


def _require_systems(task: TrainingTask, system: System, num_systems: int) -> None:
    if num_systems < 1:
        raise error(
            "plan-systems",
            f"{num_systems} systems are asked for",
            help="give a whole number from 1 on",
        )
    most = math.inf if system.max_systems is None else system.max_systems.value
    if num_systems > most:
        raise error(
            "plan-systems",
            f"{num_systems} systems are asked for, and a cluster of {system.title} has at most "
            f"{most:g}",
            help=f"give at most {most:g}",
        )
    if num_systems > task.batch_size:
        raise error(
            "plan-systems",
            f"{num_systems} systems for a batch of {counted(task.batch_size, 'sequence')}: some "
            "would have none",
            help=f"give at most {task.batch_size} systems, or raise batch.size",
        )


def _require_store(task: TrainingTask, system: System) -> None:
    needed = store_bytes(task.model.kept(task.sparsity))
    if system.store is not None and needed > system.store.value:
        raise error(
            "plan-store",
            f"{task.model.parameters:,.4g} weights take {needed / GIGABYTE:,.6g} GB in the "
            f"parameter store, and that of {system.title} has at most "
            f"{system.store.value / GIGABYTE:,.6g} GB",
            help="plan a smaller model, or a sparser one",
        )


def _too_large(task: TrainingTask, system: System) -> OpenwaferError:
    room = system.memory.value / GIGABYTE
    if not system.streams_weights:
        needed = resident_bytes(task) / GIGABYTE
        return error(
            "plan-memory",
            f"weights, gradients and states take {needed:,.4g} GB, with activations too much for "
            f"the {room:,.4g} GB of {system.title}, which does not stream weights",
            help="plan for a system that streams weights, such as cs2, or a smaller model",
        )
    least = min(map(task.activation_bytes, Activations))
    needed = least * task.sequence_length / GIGABYTE
    return error(
        "plan-memory",
        f"one sequence of {task.sequence_length} tokens takes {needed:,.4g} GB of activations even "
        f"if they are recomputed, and {system.title} has {room:,.4g} GB",
        help="plan with a smaller batch.sequence_length, or for a system with more memory",
    )
