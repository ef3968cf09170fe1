"""What layers took on a wafer that computed them: cycles by layer and pass, and copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """

    layer: str
    name: str
    count: int
    cycles: int
    stream_cycles: int
    entered: int
    left: int
    multiply_adds: int = 0


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
        """Lines for people: cycles by layer and pass, and what was copied."""
        rows = [("layer", "pass", "times", "cycles", "stream", "in", "out")]
        for one in self.passes:
            counts = f"{one.count:,}", f"{one.cycles:,}", f"{one.stream_cycles:,}"
            rows.append((one.layer or "-", one.name, *counts, f"{one.entered:,}", f"{one.left:,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(_aligned, range(len(row)), row, widths)) for row in rows]
        size = f"{self.rows} x {self.columns} PEs of {self.generation}"
        lines.append(
            f"{self.cycles:,} cycles on {size}, multiply-adds in {self.utilisation:.1%} of them; "
            f"{self.memory_bytes:,} bytes of a PE"
        )
        off = ", ".join(f"{count} by {name}" for name, count in sorted(self.copies_off.items()))
        lines.append(f"copied onto the wafer {self.copies_on} times, off it: {off or 'never'}")
        if self.loads:
            lines.append(f"programs loaded with more layers: {self.loads}")
        if self.host_calls:
            on_host = (f"{name} {count}" for name, count in sorted(self.host_calls.items()))
            lines.append(f"computed on the host: {', '.join(on_host)}")
        return "\n".join(lines)


def _aligned(number: int, text: str, width: int) -> str:
    return text.ljust(width) if number < len(("layer", "pass")) else text.rjust(width)
