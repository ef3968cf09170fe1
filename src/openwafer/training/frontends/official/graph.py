"""A training step as one function in SSA form: what the text of a graph says, as data.

The text is described in docs/formats/cirh.md.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from openwafer.diagnostics import error
from openwafer.source import Span

BITS: Final[Mapping[str, int]] = {
    "i1": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "ui8": 8,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
}  # fmt: skip
"""Bits of an element in memory, by the name of its format."""


@dataclass(frozen=True)
class TensorType:
    """A static shape, in elements, and the name of the elements' format."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * BITS[self.dtype] // 8

    def __str__(self) -> str:
        return f"tensor<{'x'.join((*map(str, self.shape), self.dtype))}>"


@dataclass(frozen=True)
class Dense:
    """Values of a tensor: one for all elements, or all of them in C order."""

    values: tuple[int | float | bool, ...]
    type: TensorType

    @property
    def integers(self) -> tuple[int, ...]:
        """The elements of a list of integers."""
        repeated = self.values * (math.prod(self.type.shape) if len(self.values) == 1 else 1)
        return tuple(int(value) for value in repeated)


Attribute: TypeAlias = (
    "bool | int | float | str | Dense | TensorType | list[Attribute] | dict[str, Attribute]"
)
Attributes: TypeAlias = Mapping[str, Attribute]


@dataclass(frozen=True)
class Argument:
    """A weight, a state or an input of the step.

    Attributes:
        resource: the name of what outlives the step; None for an input.
        output: the place among the returned values of what the resource becomes; None if it stays.
        input_name: how batches name it; None for a resource.
    """

    name: str
    type: TensorType
    resource: str | None
    output: int | None
    input_name: str | None
    span: Span


@dataclass(frozen=True)
class Operation:
    """One line of the function: `results = kind operands {attributes}`."""

    kind: str
    operands: tuple[str, ...]
    attributes: Attributes
    results: tuple[str, ...]
    result_types: tuple[TensorType, ...]
    span: Span

    @property
    def line(self) -> int:
        """The line of the text where it stands, from 1 on."""
        return self.span.source.position(self.span.start).line


@dataclass(frozen=True)
class Graph:
    """The function. Values are named as in the text, with their `%`.

    Attributes:
        returned: the values that it returns.
        outputs: of those that a script reads, by the name it has for them, the place there.
        types: of every value.
    """

    name: str
    arguments: tuple[Argument, ...]
    operations: tuple[Operation, ...]
    returned: tuple[str, ...]
    outputs: Mapping[str, int]
    types: Mapping[str, TensorType]

    @property
    def resources(self) -> Iterator[tuple[str, Argument]]:
        """What outlives the step, by its name there."""
        return ((one.resource, one) for one in self.arguments if one.resource is not None)


def verify(graph: Graph) -> None:
    """Hold a graph to what its form promises.

    Raises `cirh-value` for a value used before it is defined or defined twice, `cirh-output` for an
    argument whose new value is missing or of another type.
    """
    known = {one.name for one in graph.arguments}
    for operation in graph.operations:
        for operand in operation.operands:
            if operand not in known:
                raise _unknown(operand, operation.span)
        for result in operation.results:
            if result in known:
                raise error("cirh-value", f"{result} is defined twice", span=operation.span,
                            help="write the graph again")  # fmt: skip
            known.add(result)
    for value in graph.returned:
        if value not in known:
            raise _unknown(value, None)
    for one in graph.arguments:
        if one.output is not None:
            _verify_output(graph, one)


def _verify_output(graph: Graph, argument: Argument) -> None:
    place = argument.output
    found = None
    if place is not None and place < len(graph.returned):
        found = graph.types[graph.returned[place]]
    if found != argument.type:
        raise error(
            "cirh-output",
            f"{argument.name} of {argument.type} becomes output {place}, which is {found}",
            span=argument.span,
            help=f"the function returns {len(graph.returned)} values; write the graph again",
        )


def _unknown(value: str, span: Span | None) -> Exception:
    return error(
        "cirh-value",
        f"{value} is used, but no line above defines it",
        span=span,
        help="a value is defined before it is used; write the graph again",
    )
