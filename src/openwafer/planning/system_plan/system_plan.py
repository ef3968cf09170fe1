"""The plan of a training on a number of systems: every figure with its origin."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from openwafer.figures import Figure, Origin
from openwafer.planning.memory import (
    RESIDENT_BYTES_PER_WEIGHT,
    STORE_BYTES_PER_WEIGHT,
    store_bytes,
    stored_parameters,
)
from openwafer.planning.system_plan.choice import choose
from openwafer.planning.system_plan.training_task import TrainingTask
from openwafer.planning.system_plan.ways import Mode, Way
from openwafer.planning.systems import System
from openwafer.planning.throughput import (
    Resource,
    balance_tokens,
    critical_batch_tokens,
    energy_joules,
    most_systems_in_proportion,
)
from openwafer.planning.throughput.passes import DENSE_BYTES, TAGGED_BYTES

JOULES_PER_WH = 3600
COUNTED = "counted: every operator of a forward and a backward"
FUSED = "counted as one kernel each: no scores of tokens x tokens stay, with or without dropout"
WRITTEN_OUT = "the model calls none: scores that it computes itself stay among the activations"
FROM_CONFIG = "the config"


@dataclass(frozen=True)
class Section:
    """Figures that are told together."""

    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class SystemPlan:
    """A plan.

    Attributes:
        system: its title.
        precision: of the products, such as 16-bit.
        num_systems: that train together, each a replica of the model on its share of the batch.
        mode: how weights and cores come together, and `reason` why.
        activations: what becomes of them between forward and backward.
        limit: what a step waits for longest.
        sections: all figures.
    """

    system: str
    precision: str
    num_systems: int
    mode: Mode
    reason: str
    activations: str
    limit: str
    sections: tuple[Section, ...]

    def figure(self, title: str, name: str) -> Figure:
        """One figure of a section."""
        section = next(section for section in self.sections if section.title == title)
        return next(figure for figure in section.figures if figure.name == name)


def plan_system(task: TrainingTask, system: System, num_systems: int) -> SystemPlan:
    """Plan a training.

    Raises:
        OpenwaferError: ``plan-systems``, ``plan-store``, ``plan-memory``.
    """
    choice = choose(task, system, num_systems)
    way = choice.way
    return SystemPlan(
        system=system.title,
        precision="16-bit",
        num_systems=num_systems,
        mode=way.mode,
        reason=choice.reason,
        activations=str(way.activations),
        limit=way.time.limit,
        sections=(
            training_section(task),
            Section("system", system.figures),
            Section("memory", tuple(_of_memory(task, system, num_systems, way))),
            Section("step", tuple(_of_step(task, system, num_systems, way))),
            Section("all", tuple(_of_training(task, system, num_systems, way))),
        ),
    )


def training_section(task: TrainingTask) -> Section:
    """What is trained."""
    return Section("training", tuple(_of_task(task)))


def _inferred(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.INFERRED, source)


def _of_task(task: TrainingTask) -> Iterator[Figure]:
    model = task.model
    for name, value, source in (
        ("sequences of a step", task.batch_size, task.size_source),
        ("tokens of a sequence", task.sequence_length, FROM_CONFIG),
        ("steps", task.steps, FROM_CONFIG),
    ):
        yield Figure(name, value, "", Origin.GIVEN, source)
    source = f"{FROM_CONFIG}, the mean over its steps"
    yield Figure("sparsity", task.sparsity, "", Origin.GIVEN, source)
    yield _inferred("parameters", model.parameters, "", "counted in the model")
    yield _inferred("of them, sparse", model.sparse_parameters, "", "counted in the model")
    yield _inferred("layers", model.layers, "", "counted in the model")
    yield _inferred("width", model.width, "", "what a layer returns")
    yield _inferred("forward of a token", model.forward_flops, "FLOP", COUNTED)
    yield _inferred("backward of a token", model.backward_flops, "FLOP", COUNTED)


def _of_memory(task: TrainingTask, system: System, num_systems: int, way: Way) -> Iterator[Figure]:
    is_streamed = way.mode is Mode.STREAMED
    held = f"{RESIDENT_BYTES_PER_WEIGHT} B a weight, with gradient and states"
    if is_streamed:
        held = "weights pass by" if system.fabric else "the layer at work and the next one"
    yield _inferred("weights beside the cores", way.weights_bytes, "B", held)
    yield _inferred("activations beside the cores", way.activations_bytes, "B", COUNTED)
    fused = task.fused_attentions
    yield _inferred("fused attentions", fused, "", FUSED if fused else WRITTEN_OUT)
    used = (way.weights_bytes + way.activations_bytes) / system.memory.value
    yield _inferred("share of the memory", used, "", "weights and activations / memory")
    if is_streamed:
        source = f"{STORE_BYTES_PER_WEIGHT} B a weight with Adam"
        stored = store_bytes(task.model.kept(task.sparsity))
        yield _inferred("parameter store", stored, "B", source)
    if way.mode is not Mode.PIPELINED:
        most = way.pass_sequences
        yield _inferred("sequences of a pass, at most", most, "", "what memory has room for")
        yield _inferred(
            "largest batch in one pass", most * num_systems, "sequences", "on all systems"
        )
    largest = system.memory.value / RESIDENT_BYTES_PER_WEIGHT
    if is_streamed and system.store is not None:
        largest = stored_parameters(system.store.value)
    if not is_streamed or system.store is not None:
        source = "store / 20 B" if is_streamed else "memory / 16 B, without activations"
        yield _inferred("largest model, in parameters", largest, "", source)


def _of_step(task: TrainingTask, system: System, num_systems: int, way: Way) -> Iterator[Figure]:
    time = way.time
    own = math.ceil(task.batch_size / num_systems)
    cut = "sequences behind each other" if way.mode is Mode.PIPELINED else "as few as fit"
    yield _inferred("micro-batches of a system", time.micro_batches, "", cut)
    yield _inferred(
        "tokens of a pass", own * task.sequence_length / time.micro_batches, "", "of one system"
    )
    if way.mode is Mode.STREAMED:
        weight_bytes = TAGGED_BYTES if task.sparsity else DENSE_BYTES
        balance = balance_tokens(system, system.busy_share, weight_bytes)
        yield _inferred("balance tokens", balance, "", "b eta P / (2 IO), recomputed products too")
    for resource in Resource:
        busy = time.busy_seconds(resource)
        if busy:
            yield _inferred(str(resource), busy, "s", "busy in a step, beside the others")
    if time.update_seconds:
        yield _inferred("store", time.update_seconds, "s", "36 B a weight / its rate")
    yield _inferred("network and last layer", time.tail_seconds, "s", "2 log2(n) hops, last sums")
    if time.stretch > 1:
        yield _inferred("pipeline", time.stretch, "times", "(m + layers - 1) / m for m sequences")
    yield _inferred("step", time.seconds, "s", "the slowest of each pass, and the tail")
    peak = num_systems * system.peak.value
    flops = task.model.flops_per_token * task.step_tokens
    reached = flops / (peak * time.seconds)
    yield _inferred("share of the peak", reached, "", "FLOPs as if dense / (peak x step)")


def _of_training(
    task: TrainingTask, system: System, num_systems: int, way: Way
) -> Iterator[Figure]:
    seconds = _seconds(task, system, num_systems, way)
    energy = energy_joules(seconds, system, num_systems) / JOULES_PER_WH
    flops = task.model.flops_per_token * task.tokens
    each = "" if len(task.sizes) == 1 else ", each batch size by its own plan"
    yield _inferred("tokens", task.tokens, "", "steps x tokens of a step")
    yield _inferred("FLOPs as if dense", flops, "FLOP", COUNTED)
    yield _inferred("time", seconds, "s", f"steps x step{each}")
    yield _inferred("energy", energy, "Wh", "time x systems x power; nothing beside them")
    source = "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.1 and 1.4: trained to the end"
    critical = critical_batch_tokens(task.model.parameters)
    yield _inferred("critical batch", critical, "tokens", source)
    if way.mode is Mode.STREAMED:
        weight_bytes = TAGGED_BYTES if task.sparsity else DENSE_BYTES
        most = most_systems_in_proportion(task.step_tokens, system, system.busy_share, weight_bytes)
        yield _inferred("systems in proportion", most, "", "tokens of a step / balance tokens")


def _seconds(task: TrainingTask, system: System, num_systems: int, way: Way) -> float:
    """Of the training, whose steps of each batch size go the way that is best for them."""
    ways = {task.batch_size: way}
    for size, _ in task.sizes:
        if size not in ways:
            ways[size] = choose(replace(task, batch_size=size), system, num_systems).way
    return sum(ways[size].time.seconds * steps for size, steps in task.sizes)
