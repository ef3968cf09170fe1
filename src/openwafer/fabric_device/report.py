"""Adds passes up by layer and kind."""

from dataclasses import dataclass, field

from openwafer.sdk.kernels.resident_plan import Pass
from openwafer.training.metrics.fabric_report import LayerPass


@dataclass
class Tally:
    """Passes by layer and kind, in the order of the first ones."""

    sums: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, layer: str, one: Pass) -> None:
        """Count a pass."""
        streamed = one.stream_cycles, one.entered, one.left
        numbers = 1, one.cycles, *streamed, one.multiply_adds
        before = self.sums.get((layer, one.name), [0] * len(numbers))
        self.sums[layer, one.name] = [sum(two) for two in zip(before, numbers, strict=True)]

    def passes(self) -> tuple[LayerPass, ...]:
        """The sums."""
        return tuple(LayerPass(*names, *values) for names, values in self.sums.items())
