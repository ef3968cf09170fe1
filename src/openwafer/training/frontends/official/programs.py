"""Visits of a step as lines in a row: what each computes and writes, and when its values end."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from openwafer.training.frontends.official.graph import Dense, Graph, Operation
from openwafer.training.frontends.official.visits import StepPlan, Visit, Write, inputs_of
from openwafer.training.store.layout import Part


class Place(NamedTuple):
    """Where a value lies in the store."""

    record: str
    part: Part
    array: str


class Keep(NamedTuple):
    """Copies a value before the visit changes what it follows from."""

    value: str


Line: TypeAlias = Operation | Write | Keep


@dataclass(frozen=True)
class Program:
    """What a visit does, line by line.

    Attributes:
        loaded: values of the store that lines take before any makes them, and where they lie.
        stored: those that lines make or write, and where they are to lie.
        ends: by the number of a line, the values that no later one takes.
    """

    lines: list[Line] = field(default_factory=list)
    loaded: dict[str, Place] = field(default_factory=dict)
    stored: dict[str, Place] = field(default_factory=dict)
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def parts(self) -> dict[str, set[Part]]:
        """The parts of each record that the visit uses."""
        return _parts([*self.loaded.values(), *self.stored.values()])

    @cached_property
    def changed(self) -> dict[str, set[Part]]:
        """Those of them that it changes."""
        return _parts(self.stored.values())


def constants_of(plan: StepPlan) -> dict[str, Operation]:
    """Constants of one number, by name: each takes the memory of one, and is there all the time."""
    return {
        name: operation
        for name, operation in plan.derived.items()
        if isinstance(dense := operation.attributes.get("value"), Dense) and len(dense.values) == 1
    }


def programs_of(graph: Graph, plan: StepPlan, places: Mapping[str, Place]) -> tuple[Program, ...]:
    """The visits of a plan. What follows from what a visit borrows is computed in each anew."""
    constants = constants_of(plan)
    returned = {graph.returned[place] for place in graph.outputs.values()}
    borrowed = (places.keys() | plan.derived.keys()) - constants.keys()
    # What is wanted outside, too, may follow from what the step changes.
    kept = (returned | _overtaken(plan)) & borrowed
    programs = tuple(Program() for _ in plan.visits)
    for program, visit in zip(programs, plan.visits, strict=True):
        is_first = program is programs[0]
        known = constants.keys() | (set() if is_first else kept)
        early = {one.value for one in visit.writes} & borrowed | (kept if is_first else set())
        program.lines.extend(_lines(visit, sorted(early - known), plan, known))
        _place(program, places, known)
    _set_ends(programs, borrowed - kept, returned | constants.keys())
    return programs


def _overtaken(plan: StepPlan) -> set[str]:
    """What writes take that follows from what an earlier visit changes."""
    found, changed = set[str](), set[str]()
    for visit in plan.visits:
        for one in visit.writes:
            if not changed.isdisjoint(inputs_of(one, plan.derived)):
                found.add(one.value)
        changed.update(one.argument.name for one in visit.writes)
    return found


def peak_bytes(graph: Graph, programs: Sequence[Program]) -> int:
    """The most that values take that do not lie in the store, views of other values counted."""
    held = {one.name for one in graph.arguments if one.input_name is not None}
    now = most = sum(graph.types[one].num_bytes for one in held)
    for program in programs:
        for number, line in enumerate(program.lines):
            new = {*_made(line)} - held
            held |= new
            now += sum(graph.types[one].num_bytes for one in new)
            most = max(most, now)
            ended = held.intersection(program.ends[number])
            held -= ended
            now -= sum(graph.types[one].num_bytes for one in ended)
    return most


def _parts(places: Collection[Place]) -> dict[str, set[Part]]:
    found: dict[str, set[Part]] = defaultdict(set)
    for one in places:
        found[one.record].add(one.part)
    return found


def _lines(
    visit: Visit, early: Sequence[str], plan: StepPlan, outside: Collection[str]
) -> Iterator[Line]:
    made = set(outside)
    for line in (*map(Keep, early), *visit.nodes):
        for one in _taken(line):
            yield from _behind(one, plan, made)
        yield line


def _behind(value: str, plan: StepPlan, made: set[str]) -> Iterator[Operation]:
    """The operations on what is borrowed that a value follows from, but for what is made."""
    if value in made or value not in plan.derived:
        return
    operation = plan.derived[value]
    for one in operation.operands:
        yield from _behind(one, plan, made)
    made.update(operation.results)
    yield operation


def _place(program: Program, places: Mapping[str, Place], outside: Container[str]) -> None:
    made = set[str]()
    for line in program.lines:
        for one in _taken(line):
            if one in places and one not in made and one not in outside:
                program.loaded[one] = places[one]
        made.update(_made(line))
        changed = [line.argument.name] if isinstance(line, Write) else _made(line)
        if not isinstance(line, Keep):
            program.stored.update((one, places[one]) for one in changed if one in places)


def _set_ends(
    programs: Sequence[Program], borrowed: Container[str], lasting: Container[str]
) -> None:
    """Values end with their last use; those that a visit borrows, with the last one in it."""
    last: dict[tuple[str, int | None], tuple[int, int]] = {}
    for number, program in enumerate(programs):
        for at, line in enumerate(program.lines):
            for one in (*_taken(line), *_made(line)):
                if one not in lasting:
                    last[one, number if one in borrowed else None] = number, at
    for (one, _), (number, at) in last.items():
        programs[number].ends[at].append(one)


def _taken(line: Line) -> tuple[str, ...]:
    return line.operands if isinstance(line, Operation) else (line.value,)


def _made(line: Line) -> tuple[str, ...]:
    if isinstance(line, Operation):
        return line.results
    return () if isinstance(line, Write) else (line.value,)
