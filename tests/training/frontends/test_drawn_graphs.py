"""Graphs drawn at random change weights and states as all their lines, one by one, would."""

import random

import pytest
import torch
from torch import Tensor

from openwafer.source import SourceText, Span
from openwafer.training.frontends.official.graph import (
    Argument,
    Dense,
    Graph,
    Operation,
    TensorType,
    verify,
)
from openwafer.training.frontends.official.operators import run_operation
from openwafer.training.frontends.official.runner import GraphRunner

TYPE = TensorType((4,), "f32")
SPAN = Span(SourceText("drawn", " "), 0, 1)
RESOURCES = ("model.a.0.weight", "model.a.1.weight", "optimizer.m", "optimizer.n", "model.a.0.bias")
OPERANDS = {"cirh.Add": 2, "cirh.Mul": 2, "cirh.Abs": 1, "cirh.Const": 0}
Values = dict[str, Tensor]


def drawn_operation(draws: random.Random, result: str, known: list[str]) -> Operation:
    kind = draws.choice([*OPERANDS])
    numbers = tuple(draws.random() for _ in range(draws.choice((1, 4))))
    attributes = {"value": Dense(numbers, TYPE)} if kind == "cirh.Const" else {}
    operands = tuple(draws.choice(known) for _ in range(OPERANDS[kind]))
    return Operation(kind, operands, attributes, (result,), (TYPE,), SPAN)


def drawn_graph(draws: random.Random) -> Graph:
    """Resources may become any value, also one another, and so may outputs."""
    known = [f"%a{number}" for number in range(len(RESOURCES))] + ["%x"]
    operations = []
    for number in range(draws.randint(1, 12)):
        operations.append(drawn_operation(draws, f"%{number}", known))
        known.append(f"%{number}")
    changed = [number for number in range(len(RESOURCES)) if draws.random() < 0.7]
    returned = tuple(draws.choice(known) for _ in range(len(changed) + 2))
    places = {number: place for place, number in enumerate(changed)}
    arguments = [
        Argument(f"%a{number}", TYPE, f"state.{name}", places.get(number), None, SPAN)
        for number, name in enumerate(RESOURCES)
    ]
    arguments.append(Argument("%x", TYPE, None, None, "x", SPAN))
    outputs = {"p": len(changed), "q": len(changed) + 1}
    types = dict.fromkeys(known, TYPE)
    return Graph("drawn", tuple(arguments), tuple(operations), returned, outputs, types)


def computed(graph: Graph, held: Values, x: Tensor) -> tuple[Values, Values]:
    """What the resources become, and the outputs."""
    values = {"%x": x} | {one.name: held[name] for name, one in graph.resources}
    for line in graph.operations:
        results = run_operation(line, [values[one] for one in line.operands])
        values.update(zip(line.results, results, strict=True))
    returned = [values[one] for one in graph.returned]
    changed = {name: held[name] if one.output is None else returned[one.output]
               for name, one in graph.resources}  # fmt: skip
    return changed, {name: returned[place] for name, place in graph.outputs.items()}


@pytest.mark.parametrize("first", [0, 20])
def test_two_steps_are_those_of_all_lines(first: int) -> None:
    for seed in range(first, first + 20):
        graph = drawn_graph(random.Random(seed))
        verify(graph)
        runner = GraphRunner(graph)
        torch.manual_seed(seed)
        held = {name: torch.randn(4) for name, _ in graph.resources}
        for name, value in held.items():
            runner.write(name, value)
        for x in torch.randn(2, 4):
            held, outputs = computed(graph, held, x)
            found = runner.step({"x": x})
            assert all(torch.equal(found[name], value) for name, value in outputs.items()), seed
            assert all(torch.equal(runner.read(name), held[name]) for name in held), seed
        runner.close()
