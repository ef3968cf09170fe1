"""Steps of like layers on modelled systems, for the events and for the formula."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from openwafer.replica_steps import Joined, LayerWork, StreamedStep, replica_step
from openwafer.training.session.systems import blocks_of
from openwafer.training.store.layout import ArraySpec, RecordLayout, lay_out
from openwafer.training.stream.plan.step_time import LayerSeconds, ScheduledStep
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of
from openwafer.training.stream.schedule import RecordBytes, UpdateTiming, Visit, build
from tests.replica_steps.event_run import ModelledStep, run_events

MIB = 1 << 20


@dataclass(frozen=True)
class Shape:
    """A step on so many systems; one record a layer."""

    step: StreamedStep
    joined: Joined

    @property
    def formula_seconds(self) -> float:
        return replica_step(self.step, self.joined).seconds

    @property
    def event_seconds(self) -> float:
        return run_events(modelled(self.step, self.joined)).step


def modelled(step: StreamedStep, joined: Joined) -> ModelledStep:
    """The step's own schedule, and blocks as the systems of a run take them."""
    layers = {f"layer {n}": layer for n, layer in enumerate(step.layers)}
    sizes = {
        name: RecordBytes(int(layer.weight_bytes), int(layer.gradient_bytes))
        for name, layer in layers.items()
    }
    visits = [Visit(name, (name,)) for name in layers]
    timing = UpdateTiming.ON_FETCH if step.updates_on_fetch else UpdateTiming.ON_PUSH
    blocks = blocks_of(step.micro_batches, joined.num_systems)
    scheduled = ScheduledStep(
        build(visits, sizes, timing=timing, capacity_bytes=int(step.room_bytes)),
        visits,
        sizes,
        {n: LayerSeconds(one.forward_seconds, one.backward_seconds) for n, one in layers.items()},
        {name: layer.update_seconds for name, layer in layers.items()},
    )
    owners = {name: layer.owner for name, layer in layers.items()}
    return ModelledStep(scheduled, joined, list(map(len, blocks)), owners)


def shape(
    layers: Sequence[LayerWork], num_systems: int, room_layers: int, *, network_copies: bool
) -> Shape:
    """192 micro-batches, links of 1 GB/s, a store of 2."""
    room = room_layers * max(layer.weight_bytes for layer in layers)
    joined = Joined(num_systems, 1e9, 20e-6, 2e9, 2e9, MIB, network_copies)
    return Shape(StreamedStep(layers, 192, room), joined)


def weights_of(name: str, num_bytes: int) -> RecordLayout:
    """A record of so many bytes of weights."""
    return lay_out(name, [ArraySpec(name, torch.uint8, (num_bytes,))], [], [])


def dealt(layers: Sequence[LayerWork], num_systems: int) -> list[LayerWork]:
    """The same, whose records are in the stores of all systems."""
    sizes = {str(n): int(layer.weight_bytes) for n, layer in enumerate(layers)}
    layouts = {name: weights_of(name, size) for name, size in sizes.items()}
    owners = owners_of(layouts, num_systems, StoreSystems.ALL).values()
    return [replace(one, owner=owner) for one, owner in zip(layers, owners, strict=True)]


def like(number: int, seconds: float, mebibytes: float, update_seconds: float) -> list[LayerWork]:
    """Layers whose backwards take three times as long as their forwards."""
    num_bytes = mebibytes * MIB
    one = LayerWork(seconds, 3 * seconds, num_bytes, num_bytes, update_seconds)
    return [one] * number


def uneven(layers: Sequence[LayerWork], times: float) -> list[LayerWork]:
    """The same between an embedding and a head that are as many times as large."""
    one = layers[0]
    grown = replace(
        one, weight_bytes=times * one.weight_bytes, gradient_bytes=times * one.gradient_bytes
    )
    embedding = replace(grown, forward_seconds=0.0, backward_seconds=0.0)
    head = replace(
        grown,
        forward_seconds=times * one.forward_seconds,
        backward_seconds=times * one.backward_seconds,
    )
    return [embedding, *layers, head]
