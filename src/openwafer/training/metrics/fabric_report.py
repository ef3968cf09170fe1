"""What layers took on a wafer that computed them: cycles by layer and pass, and copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

_ADDED = (
    "count",
    "cycles",
    "stream_cycles",
    "entered",
    "left",
    "multiply_adds",
    "predicted_cycles",
)
_TITLES = (
    "layer",
    "pass",
    "times",
    "cycles",
    "predicted",
    "compute",
    "wait",
    "stream",
    "in",
    "out",
)
_OF_ACCOUNT = ("compute", "wait")
PASSES = ("forward", "delta", "gradient")
"""Of products: results, gradients of inputs, gradients of weights. Others are a PE's own."""


@dataclass(frozen=True)
class LayerPass:
    """All passes of one kind over one layer.

    Attributes:
        layer: its name; empty for what lies between layers.
        name: of the pass.
        count: of passes.
        cycles: of all of them, each from the first PE's start to the last one's end.
        stream_cycles: in which what they stream would pass the ports, if nothing else took time.
        entered: wavelets that entered through the ports.
        left: wavelets that left by them.
        multiply_adds: of products with weights, on all PEs; 0 in files of older programs.
        predicted_cycles: of products with weights, by their plan; 0 in files of older programs.
        busy_cycles: in which a core computes and does not wait, the mean of all PEs; None where no
            account was kept.
    """

    layer: str
    name: str
    count: int
    cycles: int
    stream_cycles: int
    entered: int
    left: int
    multiply_adds: int = 0
    predicted_cycles: int = 0
    busy_cycles: int | None = None

    @property
    def wait_cycles(self) -> int | None:
        """In which a core waits for wavelets, the mean of all PEs."""
        return None if self.busy_cycles is None else self.cycles - self.busy_cycles

    def plus(self, other: Self) -> Self:
        """Both of them, of the same layer and name."""
        busy = self.busy_cycles, other.busy_cycles
        return replace(
            self,
            busy_cycles=None if busy[0] is None or busy[1] is None else busy[0] + busy[1],
            **{name: getattr(self, name) + getattr(other, name) for name in _ADDED},
        )


@dataclass(frozen=True)
class Outlook:
    """What all products with weights are predicted to take on a rectangle of PEs.

    Attributes:
        rows: of PEs.
        columns: of PEs.
        generation: of the wafer.
        tokens: of a PE.
        cycles: of as many passes as were done.
        multiply_adds: of all PEs.
    """

    rows: int
    columns: int
    generation: str
    tokens: int
    cycles: int
    multiply_adds: int

    @property
    def utilisation(self) -> float:
        """Multiply-adds, as a share of one a cycle and PE."""
        return self.multiply_adds / (self.cycles * self.rows * self.columns)


@dataclass(frozen=True)
class FabricReport:
    """What a model took on a wafer.

    Attributes:
        rows: of PEs.
        columns: of PEs.
        generation: of the wafer.
        passes: by layer and pass, in the order of the first ones.
        copies_on: activations and gradients that the host copied onto the wafer.
        copies_off: those that torch's code read, by the function that did.
        host_calls: calls of layers that the host computed, by layer.
        memory_bytes: of a PE's 48 KB, at the most: code, buffers, and the part of the arena used.
        loads: programs that took the place of one, when a layer came that it did not have; what
            the wafer held was copied off and on again. 0 in files of older programs.
        transport: of what the host copied: ``"ideal"``, or by the ports at the ``"edge"``.
        copy_cycles: in which all that the host copied on and off passed the ports, or by them would
            have; no pass has any of them. 0 in files of older programs.
        outlook: what products with weights would take with other tokens, here and on a CS-2.
    """

    rows: int
    columns: int
    generation: str
    passes: tuple[LayerPass, ...] = ()
    copies_on: int = 0
    copies_off: Mapping[str, int] = field(default_factory=dict)
    host_calls: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int = 0
    loads: int = 0
    transport: str = "ideal"
    copy_cycles: int = 0
    outlook: tuple[Outlook, ...] = ()

    @property
    def cycles(self) -> int:
        """Of all passes."""
        return sum(one.cycles for one in self.passes)

    @property
    def utilisation(self) -> float:
        """Multiply-adds of products with weights, as a share of one a cycle and PE."""
        most = self.cycles * self.rows * self.columns
        return sum(one.multiply_adds for one in self.passes) / most if most else 0.0

    def cycles_of(self, layer: str, name: str | None) -> int:
        """Cycles of a layer's passes of one kind, or, for None, of what PEs do by themselves."""
        return sum(
            one.cycles
            for one in self.passes
            if one.layer == layer and (one.name == name or (not name and one.name not in PASSES))
        )

    def table(self) -> str:
        """Lines for people: cycles by layer and pass, what was copied, and the outlook."""
        has_account = any(one.busy_cycles is not None for one in self.passes)
        rows = [tuple(title for title in _TITLES if has_account or title not in _OF_ACCOUNT)]
        for one in self.passes:
            booked = [one.busy_cycles, one.wait_cycles] if has_account else []
            numbers = one.count, one.cycles, one.predicted_cycles or None, *booked
            numbers = *numbers, one.stream_cycles, one.entered, one.left
            rows.append((one.layer or "-", one.name, *map(_number, numbers)))
        lines = _table(rows)
        size = f"{self.rows} x {self.columns} PEs of {self.generation}"
        lines.append(
            f"{self.cycles:,} cycles on {size}, multiply-adds in {self.utilisation:.1%} of them; "
            f"{self.memory_bytes:,} bytes of a PE"
        )
        off = ", ".join(f"{count} by {name}" for name, count in sorted(self.copies_off.items()))
        lines.append(f"copied onto the wafer {self.copies_on} times, off it: {off or 'never'}")
        if self.copy_cycles:
            verb = "took" if self.transport == "edge" else "would take"
            lines.append(f"by the ports copies {verb} {self.copy_cycles:,} cycles more")
        if self.loads:
            lines.append(f"programs loaded with more layers: {self.loads}")
        if self.host_calls:
            on_host = (f"{name} {count}" for name, count in sorted(self.host_calls.items()))
            lines.append(f"computed on the host: {', '.join(on_host)}")
        return "\n".join([*lines, *self._outlook_lines()])

    def _outlook_lines(self) -> list[str]:
        """Predictions by tokens of a PE, a column for each rectangle."""
        if not self.outlook:
            return []
        sizes = list(dict.fromkeys((one.rows, one.columns, one.generation) for one in self.outlook))
        titles = (f"{rows} x {columns} PEs of {name}" for rows, columns, name in sizes)
        rows = [("tokens of a PE", *titles)]
        cells = {
            (one.rows, one.columns, one.generation, one.tokens): f"{one.cycles:,} "
            f"({one.utilisation:.1%})"
            for one in self.outlook
        }
        rows += [
            (str(tokens), *(cells.get((*size, tokens), "-") for size in sizes))
            for tokens in sorted({one.tokens for one in self.outlook})
        ]
        return ["predicted cycles of all products with weights, and multiply-adds:", *_table(rows)]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of columns, of which those that have numbers are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, range(len(row)), row, widths)) for row in rows]


def _aligned(number: int, text: str, width: int) -> str:
    return text.ljust(width) if number < len(("layer", "pass")) else text.rjust(width)
