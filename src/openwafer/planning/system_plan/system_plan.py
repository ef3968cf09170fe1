"""The plan of a training on a number of systems: every figure with its origin."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from openwafer.figures import Figure, Origin
from openwafer.planning.memory import (
    PARTS_OF_A_WEIGHT,
    STORE_BYTES_PER_WEIGHT,
    Sharding,
    sharded_bytes,
    store_bytes,
    stored_parameters,
)
from openwafer.planning.system_plan.choice import choose, fastest
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
        precision: number format of the products, such as 16-bit.
        num_systems: systems that train together, each a replica of the model on its share of the
            batch.
        mode: the way in which weights and cores meet, and `reason` why.
        activations: whether they are kept, recomputed or moved away.
        limit: the resource that a step waits for longest.
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
            *_layouts(task, system, num_systems),
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
        # There are none yet where a config has epochs, which nobody has counted.
        if value:
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
    held = f"{_parts(way.mode.sharding, num_systems)} B a weight, with gradient and states"
    if is_streamed:
        held = "weights pass by" if system.fabric else "the layer at work and the next one"
    yield _inferred("weights beside the cores", way.weights_bytes, "B", held)
    yield _inferred("activations beside the cores", way.activations_bytes, "B", COUNTED)
    fused = task.fused_attentions
    yield _inferred("fused attentions", fused, "", FUSED if fused else WRITTEN_OUT)
    room = system.memory.value if is_streamed else system.held_memory
    used = (way.weights_bytes + way.activations_bytes) / room
    yield _inferred("share of the memory", used, "", "weights and activations / memory")
    if is_streamed:
        source = f"{STORE_BYTES_PER_WEIGHT} B a weight with Adam"
        stored = store_bytes(task.model.kept(task.sparsity))
        yield _inferred("parameter store", stored, "B", source)
        if system.store is None and system.server is not None:
            server = system.server
            source = f"its share of the store; {server.systems.value:g} share a host's memory"
            yield _inferred("host memory of a system", stored / num_systems, "B", source)
    if way.mode is not Mode.PIPELINED:
        most = way.pass_sequences
        yield _inferred("sequences of a pass, at most", most, "", "what memory has room for")
        yield _inferred(
            "largest batch in one pass", most * num_systems, "sequences", "on all systems"
        )
    each = sharded_bytes(way.mode.sharding, num_systems)
    largest, source = room / each, f"memory / {each:g} B, without activations"
    store = system.store_bytes(num_systems)
    if is_streamed and store is not None:
        largest, source = stored_parameters(store), "store / 20 B"
    if not is_streamed or store is not None:
        yield _inferred("largest model, in parameters", largest, "", source)


def _parts(sharding: Sharding, num_systems: int) -> str:
    """Bytes of a weight as people write them, such as ``2 + (2 + 12) / 8``."""
    whole = [own for stage, own in PARTS_OF_A_WEIGHT.items() if sharding < stage]
    dealt = [own for stage, own in PARTS_OF_A_WEIGHT.items() if sharding >= stage]
    if not dealt:
        return f"{sum(whole)}"
    return " + ".join([*(f"{own}" for own in whole), f"{sum(dealt)} / {num_systems}"])


def _layouts(task: TrainingTask, system: System, num_systems: int) -> Iterator[Section]:
    """What a system of no fabric takes in each mode, so that they can be compared."""
    if system.fabric is None:
        yield Section("layouts", tuple(_of_layouts(task, system, num_systems)))


def _of_layouts(task: TrainingTask, system: System, num_systems: int) -> Iterator[Figure]:
    found = list(ways(task, system, num_systems))
    least = min(map(task.activation_bytes, Activations)) * task.sequence_length
    for mode in modes(system, num_systems):
        held = weights_bytes(task, system, num_systems, mode)
        each = "layers at work" if mode is Mode.STREAMED else _parts(mode.sharding, num_systems)
        each += "" if mode is Mode.STREAMED else " B a weight"
        own = [way for way in found if way.mode is mode]
        if mode is Mode.STREAMED and not has_store(task, system, num_systems):
            source = f"{each}, and hosts without room for the store"
            yield _inferred(f"{mode}: memory", held + least, "B", source)
            continue
        if not own:
            source = f"{each}, and one sequence: more than there is"
            yield _inferred(f"{mode}: memory", held + least, "B", source)
            continue
        way = fastest(own)
        source = f"{each}, and activations {way.activations}"
        yield _inferred(f"{mode}: memory", held + way.activations_bytes, "B", source)
        source = f"waits longest for {way.time.limit}"
        yield _inferred(f"{mode}: step", way.time.seconds, "s", source)


def _of_step(task: TrainingTask, system: System, num_systems: int, way: Way) -> Iterator[Figure]:
    time = way.time
    own = math.ceil(task.batch_size / num_systems)
    cut = "as few as fit"
    if way.mode is Mode.PIPELINED:
        cut = "sequences behind each other in each copy"
        yield _inferred("copies on a system", way.replicas, "", "as many as make a step shortest")
    yield _inferred("micro-batches of a system", time.micro_batches, "", cut)
    yield _inferred(
        "tokens of a pass", own * task.sequence_length / time.micro_batches, "", "of one system"
    )
    if way.mode is Mode.STREAMED and system.simulated is None:
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
    if task.steps:
        yield from _totals(task, system, num_systems, way)
    source = "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.1 and 1.4: trained to the end"
    critical = critical_batch_tokens(task.model.parameters)
    yield _inferred("critical batch", critical, "tokens", source)
    if way.mode is Mode.STREAMED and system.simulated is None:
        weight_bytes = TAGGED_BYTES if task.sparsity else DENSE_BYTES
        most = most_systems_in_proportion(task.step_tokens, system, system.busy_share, weight_bytes)
        yield _inferred("systems in proportion", most, "", "tokens of a step / balance tokens")


def _totals(task: TrainingTask, system: System, num_systems: int, way: Way) -> Iterator[Figure]:
    seconds = _seconds(task, system, num_systems, way)
    energy = energy_joules(seconds, system, num_systems) / JOULES_PER_WH
    flops = task.model.flops_per_token * task.tokens
    each = "" if len(task.sizes) == 1 else ", each batch size by its own plan"
    yield _inferred("tokens", task.tokens, "", "steps x tokens of a step")
    yield _inferred("FLOPs as if dense", flops, "FLOP", COUNTED)
    yield _inferred("time", seconds, "s", f"steps x step{each}")
    yield _inferred("energy", energy, "Wh", "time x systems x power; nothing beside them")


def _seconds(task: TrainingTask, system: System, num_systems: int, way: Way) -> float:
    """Of the training, whose steps of each batch size go the way that is best for them."""
    ways = {task.batch_size: way}
    for size, _ in task.sizes:
        if size not in ways:
            ways[size] = choose(replace(task, batch_size=size), system, num_systems).way
    return sum(ways[size].time.seconds * steps for size, steps in task.sizes)
