"""Chooses the way in which a system trains, and refuses what cannot be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.planning.memory import Sharding, store_bytes
from openwafer.planning.system_plan.training_task import Activations, TrainingTask
from openwafer.planning.system_plan.ways import (
    Mode,
    Way,
    has_store,
    modes,
    ways,
    weights_bytes,
)
from openwafer.planning.systems import System

GIGABYTE = 1e9
ALIKE = 1.001
"""Times the least time at which a step counts as equally short."""
SIMULATED = "the cycles that were simulated are those of weights that stream"
NO_PIPELINE = "the model is no pipeline, which calls each of its layers once, behind each other"


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
    streamed = [way for way in found if way.mode is Mode.STREAMED]
    if held:
        way = fastest(held)
        since = _sharded_since(task, system, num_systems, way, held)
        could_stream = system.fabric is None and has_store(task, system, num_systems)
        if could_stream and fastest([*held, *streamed]).mode is Mode.STREAMED:
            since += f"; streamed, a step would take {fastest(streamed).time.seconds:.4g} s"
        return Choice(way, f"{_needs(way, system)}: weights stay{since}")
    if not streamed:
        raise _too_large(task, system, num_systems)
    _require_store(task, system, num_systems)
    if system.simulated is not None:
        return Choice(fastest(streamed), f"{SIMULATED}: weights stream")
    if system.fabric is not None and not task.loads:
        return Choice(fastest(streamed), f"{NO_PIPELINE}: weights stream")
    needed = _least_held(task, system, num_systems) / GIGABYTE
    dealt = "" if system.fabric is not None or num_systems == 1 else ", sharded,"
    return Choice(
        fastest(streamed),
        f"weights, gradients and states of {needed:,.4g} GB{dealt} do not fit beside activations "
        f"into {system.held_memory / GIGABYTE:,.4g} GB: weights stream",
    )


def fastest(found: Sequence[Way]) -> Way:
    """The first that is hardly slower than any."""
    least = min(way.time.seconds for way in found)
    return next(way for way in found if way.time.seconds <= least * ALIKE)


def _sharded_since(
    task: TrainingTask, system: System, num_systems: int, way: Way, held: Sequence[Way]
) -> str:
    """Why no less is sharded."""
    if way.mode.sharding is Sharding.NONE:
        return ""
    less = [other for other in held if other.mode.sharding < way.mode.sharding]
    if less:
        return f", sharded so far, since else a step takes {fastest(less).time.seconds:.4g} s"
    whole = weights_bytes(task, system, num_systems, Mode.RESIDENT) / GIGABYTE
    return f", sharded, since all of them on each system are {whole:,.4g} GB without activations"


def _least_held(task: TrainingTask, system: System, num_systems: int) -> float:
    return min(
        weights_bytes(task, system, num_systems, mode)
        for mode in modes(system, num_systems)
        if mode is not Mode.STREAMED
    )


def _needs(way: Way, system: System) -> str:
    needed = (way.weights_bytes + way.activations_bytes) / GIGABYTE
    copies = "" if way.replicas == 1 else f"{way.replicas} copies of "
    return (
        f"{copies}weights, gradients, states and activations of {needed:,.4g} GB fit into "
        f"{system.held_memory / GIGABYTE:,.4g} GB"
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


def _require_store(task: TrainingTask, system: System, num_systems: int) -> None:
    room = system.store_bytes(num_systems)
    if room is None or has_store(task, system, num_systems):
        return
    needed = store_bytes(task.model.kept(task.sparsity))
    whose, remedy = f"that of {system.title} has at most", "plan a smaller model, or a sparser one"
    if system.store is None:
        number = counted(num_systems, "system")
        whose = f"the share of {number} of {system.title} in the memory of hosts is"
        enough = math.ceil(needed * num_systems / room)
        remedy = f"take {enough} systems, a smaller model, or describe hosts with more in a file"
    raise error(
        "plan-store",
        f"{task.model.parameters:,.4g} weights take {needed / GIGABYTE:,.6g} GB in the "
        f"parameter store, and {whose} {room / GIGABYTE:,.6g} GB",
        help=remedy,
    )


def _too_large(task: TrainingTask, system: System, num_systems: int) -> OpenwaferError:
    if not system.streams_weights and system.fabric is not None and not task.loads:
        return error(
            "plan-layers",
            f"{system.title} does not stream weights, and {NO_PIPELINE}",
            help="plan for a system that streams weights, such as cs2",
        )
    if not system.streams_weights:
        needed = _least_held(task, system, num_systems) / GIGABYTE
        return error(
            "plan-memory",
            f"weights, gradients and states take {needed:,.4g} GB, with activations too much for "
            f"the {system.held_memory / GIGABYTE:,.4g} GB of {system.title}, which does not stream "
            "weights",
            help="plan for a system that streams weights, such as cs2, or a smaller model",
        )
    least = min(map(task.activation_bytes, Activations))
    needed = least * task.sequence_length / GIGABYTE
    return error(
        "plan-memory",
        f"one sequence of {task.sequence_length} tokens takes {needed:,.4g} GB of activations even "
        f"if they are recomputed, and {system.title} has {system.memory.value / GIGABYTE:,.4g} GB",
        help="plan with a smaller batch.sequence_length, or for a system with more memory",
    )
