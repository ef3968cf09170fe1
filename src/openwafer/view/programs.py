"""What is known of a run before its events: routes and source of its program, and the host."""

from collections.abc import Iterator
from typing import Any, Final

from openwafer.sdk.arch.generation import NUM_COLORS
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.program.debug_info import Home, TypeKind
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.program import Program
from openwafer.sdk.program.routing import ColorConfig, Switches
from openwafer.view.columns import Array, Columns

THREADS: Final = (*(f"microthread {n}" for n in range(8)), "main", "tasks")


def program_columns(program: Program, title: str, journal: Journal | None = None) -> Columns:
    """A program that has not run, or what a journal says of its run.

    Args:
        program: compiled.
        title: for people.
        journal: of the run, for its length and the host's operations.
    """
    head = _head_of_program(program) | {"kind": "wafer", "title": title}
    if journal is not None:
        head |= {"cycles": journal.last_cycle, "host": list(_asked(journal))}
    arrays: dict[str, Array] = {
        "routes_of": program.routes_of.ravel(order="F"),
        "image_of": program.images_by_number,
    }
    return Columns(head, arrays)


def numbers_of_sources(program: Program) -> dict[str, int]:
    """Sources by the number that a head has for them."""
    return {one.name: number for number, one in enumerate(program.debug.sources)}


def _head_of_program(program: Program) -> dict[str, Any]:
    sources = numbers_of_sources(program)
    return {
        "program": digest_of(program),
        "arch": program.arch,
        "width": program.width,
        "height": program.height,
        "fabric": program.fabric,
        "offset": program.offset,
        "cycles": 0,
        "threads": THREADS,
        "images": [program.label_of(number) for number in range(len(program.images))],
        "sources": [(one.name, one.text) for one in program.debug.sources],
        "places": [(sources.get(one.file, -1), one.line, one.function) for one in program.places],
        "routes": [[_route(*one) for one in own] for own in program.routes],
        "colors": _color_names(program),
    }


def _route(color: int, config: ColorConfig) -> tuple[int, int, list[tuple[int, int]]]:
    """Color, the switch position at the start, and what goes in and out at each position."""
    switches = config.switches or Switches()
    masks = [(config.rx, config.tx)]
    for one in switches.positions:
        rx, tx = masks[-1]
        masks.append((rx if one.rx is None else one.rx, tx if one.tx is None else one.tx))
    return color, switches.current, masks


def _color_names(program: Program) -> list[list[str]]:
    """What the source and the compile command call each color."""
    names: list[set[str]] = [set() for _ in range(NUM_COLORS)]
    for name, text in program.colors:
        if text.isdecimal() and int(text) < NUM_COLORS:
            names[int(text)].add(name)
    for one in program.debug.variables:
        kind = program.debug.types[one.type]
        is_color = kind.kind is TypeKind.ID and kind.name == "color"
        if is_color and one.home is Home.CONSTANT and one.content:
            number = int.from_bytes(one.content, "little")
            if number < NUM_COLORS:
                names[number].add(one.name.rpartition(".")[2])
    for name, color in program.streams:
        names[color].add(name)
    return [sorted(own) for own in names]


def _asked(journal: Journal) -> Iterator[tuple[str, int, int]]:
    """Operations of the host: what each is, its begin, and as its end the next one's begin."""
    ends = [*(one.cycle for one in journal.entries[1:]), journal.last_cycle]
    for entry, end in zip(journal.entries, ends, strict=False):
        yield type(entry.operation).__name__, entry.cycle, end
