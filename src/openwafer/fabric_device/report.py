"""What layers took on the fabric: cycles by layer and pass, copies, and the memory of a PE."""

from collections import Counter
from dataclasses import dataclass, field

from openwafer.sdk.kernels.resident import Pass


@dataclass(frozen=True)
class LayerPass:
    """All passes of one kind over one layer.

    Attributes:
        layer: its name; empty for what lies between layers.
        name: of the pass.
        count: of passes.
        cycles: of all of them.
        stream_cycles: in which what they stream would pass the ports, if nothing else took time.
        entered: wavelets that entered through the ports.
        left: wavelets that left by them.
    """

    layer: str
    name: str
    count: int
    cycles: int
    stream_cycles: int
    entered: int
    left: int


@dataclass
class FabricReport:
    """What a model took on the fabric up to now.

    Attributes:
        passes: by layer and pass, in the order of the first ones.
        copies_on: activations and gradients that the host copied onto the wafer.
        copies_off: those that torch's code read, by the function that did.
        host_calls: calls of layers that the host computed, by layer.
        memory_bytes: of a PE's 48 KB, at the most; the whole arena counts as far as it was used.
    """

    passes: list[LayerPass] = field(default_factory=list)
    copies_on: int = 0
    copies_off: Counter[str] = field(default_factory=Counter)
    host_calls: Counter[str] = field(default_factory=Counter)
    memory_bytes: int = 0

    @property
    def cycles(self) -> int:
        """Of all passes."""
        return sum(one.cycles for one in self.passes)

    def table(self) -> str:
        """Lines for people: cycles by layer and pass, and what was copied."""
        rows = [("layer", "pass", "times", "cycles", "stream", "in", "out")]
        rows += [
            (
                one.layer or "-", one.name, f"{one.count:,}", f"{one.cycles:,}",
                f"{one.stream_cycles:,}", f"{one.entered:,}", f"{one.left:,}",
            )
            for one in self.passes
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                text.ljust(width) if number < 2 else text.rjust(width)
                for number, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        off = ", ".join(f"{count} by {name}" for name, count in sorted(self.copies_off.items()))
        on_host = ", ".join(f"{name} {count}" for name, count in sorted(self.host_calls.items()))
        return "\n".join(
            [
                *lines,
                f"{self.cycles:,} cycles; {self.memory_bytes:,} bytes of a PE",
                f"copied onto the wafer {self.copies_on} times, off it: {off or 'never'}",
                *([f"computed on the host: {on_host}"] if on_host else []),
            ]
        )


@dataclass
class Tally:
    """Adds passes up by layer and kind."""

    sums: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, layer: str, one: Pass) -> None:
        """Count a pass."""
        found = self.sums.setdefault((layer, one.name), [0] * 5)
        for number, value in enumerate((1, one.cycles, one.stream_cycles, one.entered, one.left)):
            found[number] += value

    def passes(self) -> list[LayerPass]:
        """The sums."""
        return [LayerPass(*names, *values) for names, values in self.sums.items()]
