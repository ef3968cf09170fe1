"""Plans a step of a graph: which layer's weights are on the device while which operations run.

A graph gives its operations in one order, and casts all weights in its first lines. Here they are
put in the order of *visits*: while a visit lasts, the device has the weights (and where they are
updated, the states) of its layers, and what follows from these alone is computed when it is wanted
and dropped with them. Results do not depend on the order, since every value is computed once by
the same operation from the same values.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from openwafer.training.frontends.official.graph import Argument, Graph, Operation

MODEL: Final = "state.model."
SHARED: Final = ""
"""The record of what belongs to no layer, such as a step count: the device has it all the time."""


@dataclass(frozen=True)
class Write:
    """At the end of a step, `argument` has the value that the step returns for it."""

    argument: Argument
    value: str


Node = Operation | Write


@dataclass(frozen=True)
class Visit:
    """Operations and writes that run while the device has the weights of `layers`."""

    layers: frozenset[str]
    nodes: tuple[Node, ...]

    @property
    def writes(self) -> tuple[Write, ...]:
        """The weights and states that have their new values by its end."""
        return tuple(node for node in self.nodes if isinstance(node, Write))


@dataclass(frozen=True)
class StepPlan:
    """A step as data.

    Attributes:
        records: the resources of each layer, and those of no layer under :data:`SHARED`.
        derived: operations on constants, resources of one layer and shared ones alone, by result.
        visits: in the order they are made; the last one writes what is shared.
        waiting: values that wait in the store for the visit that updates with them, as gradients
            do for a norm; by name, the layer with which they wait.
    """

    records: Mapping[str, tuple[Argument, ...]]
    derived: Mapping[str, Operation]
    visits: tuple[Visit, ...]
    waiting: Mapping[str, str]

    def layer_bytes(self, layer: str) -> int:
        """Bytes of a layer's weights."""
        return sum(one.type.num_bytes for one in self.records[layer] if is_weight(one))


def is_weight(argument: Argument) -> bool:
    """Whether it is the model's, so no optimizer's."""
    return (argument.resource or "").startswith(MODEL)


def layer_of(resource: str) -> str:
    """The layer of a weight: the element of the outermost list of modules, or its own module."""
    name = resource.removeprefix(MODEL)
    in_list = re.match(r"(.*?\.\d+)\.", name)
    return in_list[1] if in_list else name.rpartition(".")[0] or name


def plan_step(graph: Graph) -> StepPlan:
    """The visits of a step, in the order that the graph's lines suggest."""
    layers = _layers(graph)
    derived = _derived(graph, layers)
    outputs = [(one, one.output) for one in graph.arguments if one.output is not None]
    writes = [Write(one, graph.returned[place]) for one, place in outputs]
    writes = [one for one in writes if one.value != one.argument.name]
    nodes: list[Node] = [one for one in graph.operations if one.results[0] not in derived]
    nodes += [one for one in writes if one.argument.name in layers]
    updates = _updates(graph, nodes, layers, derived)
    needed = [
        _needed(node, layers, derived) | updates.get(at, set()) for at, node in enumerate(nodes)
    ]
    visits = [*_visits(nodes, needed, derived)]
    visits.append(
        Visit(frozenset(), tuple(one for one in writes if one.argument.name not in layers))
    )
    records: dict[str, list[Argument]] = defaultdict(list)
    for _, one in graph.resources:
        records[layers.get(one.name, SHARED)].append(one)
    frozen = {layer: tuple(held) for layer, held in records.items()}
    updating = {id(nodes[at]) for at in updates}
    waiting = _waiting(visits, updating, derived)
    return StepPlan(frozen, derived, tuple(visits), waiting)


def inputs_of(node: Node, derived: Mapping[str, Operation]) -> tuple[str, ...]:
    """What a node takes: values that other nodes compute, and arguments, behind derived values."""
    left = [node.value] if isinstance(node, Write) else list(node.operands)
    found: dict[str, None] = {}
    seen: set[str] = set()
    while left:
        value = left.pop()
        if value not in derived:
            found[value] = None
        elif value not in seen:
            seen.add(value)
            left += derived[value].operands
    return tuple(found)


def _layers(graph: Graph) -> dict[str, str]:
    """The layer of each weight, and of each state that the updates of one layer's weights use."""
    found = {one.name: layer_of(resource) for resource, one in graph.resources if is_weight(one)}
    states = {one.name for _, one in graph.resources} - found.keys()
    behind = {state: frozenset({state}) for state in states}
    for operation in graph.operations:
        held = [behind[one] for one in operation.operands if one in behind]
        if held:
            behind.update(dict.fromkeys(operation.results, held[0].union(*held[1:])))
    users: dict[str, set[str]] = {state: set() for state in states}
    for _, one in graph.resources:
        if is_weight(one) and one.output is not None:
            for state in behind.get(graph.returned[one.output], ()):
                users[state].add(found[one.name])
    found.update({state: min(of) for state, of in users.items() if len(of) == 1})
    return found


def _derived(graph: Graph, layers: Mapping[str, str]) -> dict[str, Operation]:
    of_layer = {one.name: {layers[one.name]} - {SHARED} if one.name in layers else set[str]()
                for _, one in graph.resources}  # fmt: skip
    found: dict[str, Operation] = {}
    for operation in graph.operations:
        if not all(one in of_layer for one in operation.operands):
            continue
        needed = set[str]().union(*(of_layer[one] for one in operation.operands))
        if len(needed) <= 1:
            of_layer.update(dict.fromkeys(operation.results, needed))
            found.update(dict.fromkeys(operation.results, operation))
    return found


def _updates(
    graph: Graph, nodes: Sequence[Node], layers: Mapping[str, str], derived: Mapping[str, Operation]
) -> dict[int, set[str]]:
    """The nodes from which only the new weights and states of one layer follow, and that layer."""
    reached: dict[str, set[str]] = defaultdict(set)
    for place in graph.outputs.values():
        reached[graph.returned[place]] = {SHARED, "an output"}
    found: dict[int, set[str]] = {}
    for at in range(len(nodes) - 1, -1, -1):
        node = nodes[at]
        if isinstance(node, Write):
            follows = {layers[node.argument.name]}
        else:
            follows = set[str]().union(*(reached[one] for one in node.results))
        if len(follows) == 1 and _needed(node, layers, derived) <= follows:
            found[at] = follows
        for one in inputs_of(node, derived):
            if len(reached[one]) < 2:
                reached[one] = reached[one] | follows
    return found


def _needed(
    node: Node, layers: Mapping[str, str], derived: Mapping[str, Operation]
) -> frozenset[str]:
    return frozenset(layers[one] for one in inputs_of(node, derived) if one in layers)


def _visits(
    nodes: Sequence[Node], needed: Sequence[frozenset[str]], derived: Mapping[str, Operation]
) -> Iterator[Visit]:
    """Run what can run with the layers at hand; then those of the earliest line that can run."""
    ready = _Ready(nodes, needed, derived)
    done: list[Node] = []
    while True:
        number = ready.take()
        if number is not None:
            done.append(nodes[number])
            continue
        if done:
            yield Visit(ready.present, tuple(done))
        if not ready.turn_to_earliest():
            return
        done = []


class _Ready:
    """The nodes whose inputs are computed, by what they need and in the order of the lines."""

    def __init__(
        self,
        nodes: Sequence[Node],
        needed: Sequence[frozenset[str]],
        derived: Mapping[str, Operation],
    ) -> None:
        self.present: frozenset[str] = frozenset()
        self._needed = needed
        self._then: dict[int, list[int]] = defaultdict(list)
        self._num_waits: list[int] = []
        for number, waits in enumerate(_waits(nodes, derived)):
            self._num_waits.append(len(waits))
            for one in waits:
                self._then[one].append(number)
        self._heaps: dict[frozenset[str], list[int]] = {one: [] for one in {*needed, frozenset()}}
        for number, num_waits in enumerate(self._num_waits):
            if not num_waits:
                self._heaps[needed[number]].append(number)
        self._at_hand = [self._heaps[frozenset()]]

    def take(self) -> int | None:
        """The earliest node that runs with the layers at hand; None where none does."""
        heap = min((one for one in self._at_hand if one), default=None)
        if heap is None:
            return None
        number = heapq.heappop(heap)
        for one in self._then[number]:
            self._num_waits[one] -= 1
            if not self._num_waits[one]:
                heapq.heappush(self._heaps[self._needed[one]], one)
        return number

    def turn_to_earliest(self) -> bool:
        """Have the layers at hand that the earliest node needs; False where no node is left."""
        found = min(((heap[0], layers) for layers, heap in self._heaps.items() if heap),
                    key=lambda one: one[0], default=None)  # fmt: skip
        if found is None:
            return False
        self.present = found[1]
        self._at_hand = [heap for layers, heap in self._heaps.items() if layers <= self.present]
        return True


def _waits(nodes: Sequence[Node], derived: Mapping[str, Operation]) -> list[set[int]]:
    """By node, those that run before it: who makes its inputs, who reads what it overwrites."""
    makers: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    found: list[set[int]] = []
    for number, node in enumerate(nodes):
        inputs = inputs_of(node, derived)
        found.append({makers[one] for one in inputs if one in makers})
        if isinstance(node, Write):
            continue
        makers.update(dict.fromkeys(node.results, number))
        for one in inputs:
            readers[one].append(number)
    for number, node in enumerate(nodes):
        if isinstance(node, Write):
            found[number].update(readers[node.argument.name])
    return found


def _waiting(
    visits: Sequence[Visit], updating: Container[int], derived: Mapping[str, Operation]
) -> dict[str, str]:
    """Values that one visit's updates alone use, beside what no update is where they are made."""
    made: dict[str, int] = {}
    uses: dict[str, set[int]] = defaultdict(set)
    kept: set[str] = set()
    for number, visit in enumerate(visits):
        for node in visit.nodes:
            for one in inputs_of(node, derived):
                is_later = made.get(one, number) != number
                uses[one].update((number,) if is_later else ())
                kept.update((one,) if is_later != (id(node) in updating) else ())
            if not isinstance(node, Write):
                made.update(dict.fromkeys(node.results, number))
    return {
        value: min(visits[min(numbers)].layers)
        for value, numbers in uses.items()
        if len(numbers) == 1 and value not in kept
    }
