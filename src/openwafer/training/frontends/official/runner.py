"""Runs steps of a graph over the parameter store, whose layers are fetched visit by visit.

A value lives from the operation that makes it to the last one that takes it. What follows from the
resources of a visit alone is dropped with the visit, and a gradient that waits for a later visit
lies in the store. New weights and states are written where the old ones are.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from openwafer.config import Size
from openwafer.diagnostics import did_you_mean, error
from openwafer.training.frontends.official.graph import Graph, Operation, TensorType
from openwafer.training.frontends.official.operators import (
    DTYPES,
    run_operation,
    unknown_operations,
)
from openwafer.training.frontends.official.visits import (
    StepPlan,
    Write,
    inputs_of,
    is_weight,
    plan_step,
)
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.parameter_store import Loan, ParameterStore, Tier

SHARED_RECORD: Final = "of no layer"


class _Place(NamedTuple):
    """Where a value lies in the store."""

    record: str
    part: Part
    array: str


@dataclass(frozen=True)
class _VisitValues:
    """What a visit takes from the store, and when its values end.

    Attributes:
        parts: of each record that it uses; of these, `changed`.
        early: values that are computed before its first write, since that may change them.
        ends: by the number of a node, the values that no later one takes.
    """

    parts: dict[str, set[Part]] = field(default_factory=lambda: defaultdict(set))
    changed: dict[str, set[Part]] = field(default_factory=lambda: defaultdict(set))
    early: list[str] = field(default_factory=list)
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))


class GraphRunner:
    """A graph, and the store that has its weights and states, all zero at first.

    Args:
        graph: a step of training or of evaluation.
        folder: where the store lies on disk; None keeps it in DRAM.
        ring_bytes: see :class:`ParameterStore`; by default room for two visits.

    Raises:
        OpenwaferError: ``cirh-operation`` for operations that no meaning is known of, with their
            count; what :meth:`ParameterStore.create` raises.

    Attributes:
        plan: of the visits of a step.
        store: of the graph's resources, and of gradients that wait, by their values' names.
        peak_bytes: the most that a step has held beside the store, with views of other values.
    """

    def __init__(
        self, graph: Graph, folder: Path | None = None, ring_bytes: Size | None = None
    ) -> None:
        refuse_unknown(graph)
        self.graph = graph
        self.plan = plan_step(graph)
        layouts = [_layout(layer, self.plan, graph) for layer in _layers(self.plan)]
        self.places = dict(_places(self.plan))
        self.visits = _visit_values(graph, self.plan, self.places)
        tier = Tier.DRAM if folder is None else Tier.DISK
        self.store = ParameterStore.create(
            layouts,
            {(one.name, part): tier for one in layouts for part in Part},
            folder=folder,
            ring_bytes=_ring_bytes(layouts, self.visits) if ring_bytes is None else ring_bytes,
        )
        self.peak_bytes = 0
        self._of_resource = {name: self.places[one.name] for name, one in graph.resources}

    def close(self) -> None:
        """End the store."""
        self.store.close()

    def read(self, resource: str) -> Tensor:
        """A copy of a weight or state. Raises ``cirh-resource`` for a name that is none."""
        with self._borrowed(resource, is_read_only=True) as tensor:
            return tensor.clone()

    def write(self, resource: str, value: Tensor) -> None:
        """Set a weight or state. Raises ``cirh-resource`` for another name, shape or format."""
        with self._borrowed(resource, is_read_only=False) as tensor:
            if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
                raise error(
                    "cirh-resource",
                    f"{resource} is {_type_of(tensor)}, and is to become {_type_of(value)}",
                    help="load a checkpoint of the model that the graph was written for",
                )
            tensor.copy_(value)

    def step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the graph once, and give what it outputs, by name.

        Args:
            inputs: of a batch, by the names that the graph has for them.

        Raises:
            OpenwaferError: ``cirh-input`` for an input that is missing, or of another shape or
                format; ``cirh-result``.
        """
        taken = {one.name: _checked(inputs, one.input_name, one.type)
                 for one in self.graph.arguments if one.input_name is not None}  # fmt: skip
        self.store.foresee([wanted for visit in self.visits for wanted in visit.parts.items()])
        with torch.no_grad():
            return _Step(self, taken).outputs()

    @contextmanager
    def _borrowed(self, resource: str, *, is_read_only: bool) -> Iterator[Tensor]:
        if resource not in self._of_resource:
            raise error("cirh-resource", f"the graph has no resource {resource}",
                        help=did_you_mean(resource, self._of_resource))  # fmt: skip
        record, part, array = self._of_resource[resource]
        with self.store.lent(record, (part,), read_only=is_read_only) as loan:
            yield loan.tensor(array, part)


class _Step:
    """A step under way: the values at hand, and the loans of a visit."""

    def __init__(self, runner: GraphRunner, inputs: dict[str, Tensor]) -> None:
        self._runner = runner
        self._plan = runner.plan
        self._values = inputs
        self._derived: dict[str, Tensor] = {}
        self._held_bytes = sum(one.nbytes for one in inputs.values())
        self._loans: dict[str, Loan] = {}

    def outputs(self) -> dict[str, Tensor]:
        graph = self._runner.graph
        for visit, values in zip(self._plan.visits, self._runner.visits, strict=True):
            with self._borrowed(values):
                early = {one: self._value(one).clone() for one in values.early}
                self._hold(self._values, early)
                for number, node in enumerate(visit.nodes):
                    self._run(node)
                    for one in values.ends[number]:
                        if one in self._values:
                            self._held_bytes -= self._values.pop(one).nbytes
        return {name: self._values[graph.returned[at]] for name, at in graph.outputs.items()}

    @contextmanager
    def _borrowed(self, values: _VisitValues) -> Iterator[None]:
        try:
            for record, parts in values.parts.items():
                is_read_only = record not in values.changed
                loan = self._runner.store.borrow(record, parts, read_only=is_read_only)
                self._loans[record] = loan
            for loan in self._loans.values():
                loan.wait()
            yield
        finally:
            self._held_bytes -= sum(one.nbytes for one in self._derived.values())
            self._derived.clear()
            for record, loan in self._loans.items():
                loan.release(dirty=values.changed.get(record, ()))
            self._loans.clear()

    def _run(self, node: Operation | Write) -> None:
        if isinstance(node, Write):
            self._stored(node.argument.name).copy_(self._value(node.value))
            return
        results = run_operation(node, [self._value(one) for one in node.operands])
        self._hold(self._values, dict(zip(node.results, results, strict=True)))
        for one in self._plan.waiting.keys() & set(node.results):
            self._stored(one).copy_(self._values[one])
        self._runner.peak_bytes = max(self._runner.peak_bytes, self._held_bytes)

    def _hold(self, held: dict[str, Tensor], new: Mapping[str, Tensor]) -> None:
        before = sum(held[name].nbytes for name in new if name in held)
        self._held_bytes += sum(one.nbytes for one in new.values()) - before
        held.update(new)

    def _value(self, name: str) -> Tensor:
        """A value that was computed, or that lies in or follows from what is borrowed."""
        for known in (self._values, self._derived):
            if name in known:
                return known[name]
        if name not in self._plan.derived:
            return self._stored(name)
        operation = self._plan.derived[name]
        results = run_operation(operation, [self._value(one) for one in operation.operands])
        self._hold(self._derived, dict(zip(operation.results, results, strict=True)))
        return self._derived[name]

    def _stored(self, name: str) -> Tensor:
        record, part, array = self._runner.places[name]
        return self._loans[record].tensor(array, part)


def refuse_unknown(graph: Graph) -> None:
    """Raise ``cirh-operation`` for operations that no meaning is known of, with their count."""
    found = unknown_operations(graph)
    if found:
        num_lines = sum(map(len, found.values()))
        raise error(
            "cirh-operation",
            f"{num_lines:,} of {len(graph.operations):,} operations are of kinds that cannot be "
            "run here",
            notes=tuple(f"{kind}: {len(lines):,}, the first in line {lines[0]}"
                        for kind, lines in found.items()),
            help="leave out of the model what they come from; docs/formats/cirh.md lists the kinds "
            "that are known",
        )  # fmt: skip


def _checked(inputs: Mapping[str, Tensor], name: str, wanted: TensorType) -> Tensor:
    given = inputs.get(name)
    if given is not None and (tuple(given.shape), given.dtype) == _shape_and_dtype(wanted):
        return given
    raise error(
        "cirh-input",
        f"input {name} is {'missing' if given is None else _type_of(given)}; the graph takes "
        f"{wanted}",
        help="give batches as the one that the graph was written for",
    )


def _shape_and_dtype(type_: TensorType) -> tuple[tuple[int, ...], torch.dtype]:
    return type_.shape, DTYPES[type_.dtype]


def _type_of(tensor: Tensor) -> TensorType:
    names = {dtype: name for name, dtype in DTYPES.items()}
    return TensorType(tuple(tensor.shape), names.get(tensor.dtype, str(tensor.dtype)))


def _layers(plan: StepPlan) -> list[str]:
    return sorted({*plan.records, *plan.waiting.values()})


def _record(layer: str) -> str:
    return layer or SHARED_RECORD


def _layout(layer: str, plan: StepPlan, graph: Graph) -> RecordLayout:
    held = plan.records.get(layer, ())
    weights = [_spec(str(one.resource), one.type) for one in held if is_weight(one)]
    states = [_spec(str(one.resource), one.type) for one in held if not is_weight(one)]
    waiting = [_spec(one, graph.types[one]) for one, of in plan.waiting.items() if of == layer]
    return lay_out(_record(layer), weights, states, waiting)


def _spec(name: str, type_: TensorType) -> ArraySpec:
    shape, dtype = _shape_and_dtype(type_)
    return ArraySpec(name, dtype, shape)


def _places(plan: StepPlan) -> Iterator[tuple[str, _Place]]:
    """Where each resource and each value that waits lies, by the names that the graph has."""
    for layer, held in plan.records.items():
        for one in held:
            part = Part.WEIGHTS if is_weight(one) else Part.STATES
            yield one.name, _Place(_record(layer), part, str(one.resource))
    for value, layer in plan.waiting.items():
        yield value, _Place(_record(layer), Part.GRADIENTS, value)


def _visit_values(
    graph: Graph, plan: StepPlan, places: Mapping[str, _Place]
) -> tuple[_VisitValues, ...]:
    returned = {graph.returned[place] for place in graph.outputs.values()}
    visits = tuple(_VisitValues() for _ in plan.visits)
    # A value that is wanted outside may follow from what a visit changes.
    visits[0].early.extend(one for one in returned if one in plan.derived or one in places)
    for visit, values in zip(plan.visits, visits, strict=True):
        written = {one.value for one in visit.writes}
        values.early.extend(one for one in written if one in plan.derived or one in places)
        used = [name for node in visit.nodes for name in inputs_of(node, plan.derived)]
        used += [name for one in values.early for name in _behind(one, plan)]
        changed = [one.argument.name for one in visit.writes]
        changed += [one for node in visit.nodes for one in _results(node) if one in plan.waiting]
        for name in (*used, *changed):
            if name in places:
                values.parts[places[name].record].add(places[name].part)
        for name in changed:
            values.changed[places[name].record].add(places[name].part)
    _set_ends(plan, visits, returned)
    return visits


def _set_ends(plan: StepPlan, visits: Sequence[_VisitValues], returned: set[str]) -> None:
    """Values end with their last use; those that wait, with the last one where they are made."""
    last: dict[str, tuple[int, int]] = {}
    made: dict[str, int] = {}
    for at, visit in enumerate(plan.visits):
        for number, node in enumerate(visit.nodes):
            made.update(dict.fromkeys(_results(node), at))
            for one in (*inputs_of(node, plan.derived), *_results(node)):
                if one not in plan.waiting or made.get(one) == at:
                    last[one] = at, number
        if visit.nodes:
            last.update(dict.fromkeys(visits[at].early, (at, len(visit.nodes) - 1)))
    for one, (at, number) in last.items():
        if one not in returned:
            visits[at].ends[number].append(one)


def _results(node: Operation | Write) -> tuple[str, ...]:
    return () if isinstance(node, Write) else node.results


def _behind(value: str, plan: StepPlan) -> tuple[str, ...]:
    """What a value follows from that is not derived."""
    operation = plan.derived.get(value)
    return (value,) if operation is None else inputs_of(operation, plan.derived)


def _ring_bytes(layouts: Sequence[RecordLayout], visits: Sequence[_VisitValues]) -> int:
    by_name = {one.name: one for one in layouts}
    return 2 * max(
        sum(by_name[record].part_bytes(part) for record, of in visit.parts.items() for part in of)
        for visit in visits
    )
