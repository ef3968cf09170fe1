"""Runs steps of a graph over the parameter store, whose layers are fetched visit by visit.

A value lives from the operation that makes it to the last one that takes it; a gradient that waits
for a later visit lies in the store. New weights and states are written where the old ones are.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
from openwafer.training.frontends.official.programs import (
    Place,
    Program,
    constants_of,
    peak_bytes,
    programs_of,
)
from openwafer.training.frontends.official.visits import StepPlan, Write, is_weight, plan_step
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.parameter_store import Loan, ParameterStore, Tier

SHARED_RECORD: Final = "of no layer"


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
        peak_bytes: the most that a step holds beside the store, with views of other values.
    """

    def __init__(
        self, graph: Graph, folder: Path | None = None, ring_bytes: Size | None = None
    ) -> None:
        refuse_unknown(graph)
        self.graph = graph
        self.plan = plan_step(graph)
        layouts = [_layout(layer, self.plan, graph) for layer in _layers(self.plan)]
        self.places = dict(_places(self.plan))
        self.programs = programs_of(graph, self.plan, self.places)
        self._constants = {name: run_operation(one, ())[0]
                           for name, one in constants_of(self.plan).items()}  # fmt: skip
        tier = Tier.DRAM if folder is None else Tier.DISK
        self.store = ParameterStore.create(
            layouts,
            {(one.name, part): tier for one in layouts for part in Part},
            folder=folder,
            ring_bytes=_ring_bytes(layouts, self.programs) if ring_bytes is None else ring_bytes,
        )
        self.peak_bytes = peak_bytes(graph, self.programs)
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
        values = self._constants | taken
        self.store.foresee([wanted for one in self.programs for wanted in one.parts.items()])
        with torch.no_grad():
            for program in self.programs:
                self._run(program, values)
        outputs = self.graph.outputs.items()
        return {name: values[self.graph.returned[place]] for name, place in outputs}

    def _run(self, program: Program, values: dict[str, Tensor]) -> None:
        with self._lent(program) as views:
            values.update((name, views[name]) for name in program.loaded)
            for number, line in enumerate(program.lines):
                if isinstance(line, Operation):
                    results = run_operation(line, [values[one] for one in line.operands])
                    values.update(zip(line.results, results, strict=True))
                    for one in program.stored.keys() & line.results:
                        views[one].copy_(values[one])
                elif isinstance(line, Write):
                    views[line.argument.name].copy_(values[line.value])
                else:
                    values[line.value] = values[line.value].clone()
                for one in program.ends[number]:
                    del values[one]

    @contextmanager
    def _lent(self, program: Program) -> Iterator[dict[str, Tensor]]:
        """Views of what a visit takes from the store, with the waits for it."""
        changed = program.changed
        loans = dict[str, Loan]()
        try:
            for record, parts in program.parts.items():
                loans[record] = self.store.borrow(record, parts, read_only=record not in changed)
            for loan in loans.values():
                loan.wait()
            yield {name: loans[at.record].tensor(at.array, at.part)
                   for name, at in (program.loaded | program.stored).items()}  # fmt: skip
        finally:
            for record, loan in loans.items():
                loan.release(dirty=changed.get(record, ()))

    @contextmanager
    def _borrowed(self, resource: str, *, is_read_only: bool) -> Iterator[Tensor]:
        if resource not in self._of_resource:
            raise error("cirh-resource", f"the graph has no resource {resource}",
                        help=did_you_mean(resource, self._of_resource))  # fmt: skip
        record, part, array = self._of_resource[resource]
        with self.store.lent(record, (part,), read_only=is_read_only) as loan:
            yield loan.tensor(array, part)


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


def _places(plan: StepPlan) -> Iterator[tuple[str, Place]]:
    """Where each resource and each value that waits lies, by the names that the graph has."""
    for layer, held in plan.records.items():
        for one in held:
            part = Part.WEIGHTS if is_weight(one) else Part.STATES
            yield one.name, Place(_record(layer), part, str(one.resource))
    for value, layer in plan.waiting.items():
        yield value, Place(_record(layer), Part.GRADIENTS, value)


def _ring_bytes(layouts: Sequence[RecordLayout], programs: Sequence[Program]) -> int:
    by_name = {one.name: one for one in layouts}
    return 2 * max(
        sum(by_name[record].part_bytes(part) for record, of in one.parts.items() for part in of)
        for one in programs
    )
