"""Adds passes up by layer and kind, and predicts them for other rectangles."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels.resident_cycles import on_rectangle, product_cycles
from openwafer.sdk.kernels.resident_plan import Pass, ResidentPlan, Weights
from openwafer.training.metrics.fabric_report import LayerPass, Outlook

_TOKENS: Final = (4, 8, 16, 32, 64, 128)
"""Of a PE, with which rectangles are predicted."""
_CS2: Final = 994, 750
"""Rows and columns of a CS-2's PEs that programs use (published)."""


@dataclass
class Tally:
    """Passes by layer and kind, in the order of the first ones."""

    sums: dict[tuple[str, str], LayerPass] = field(default_factory=dict)
    _counts: Counter[tuple[Weights, str]] = field(default_factory=Counter)

    def add(self, layer: str, one: Pass, plan: ResidentPlan) -> None:
        """Count a pass of a plan's program."""
        key, predicted = (layer, one.name), 0
        if one.weights is not None:
            self._counts[one.weights, one.name] += 1
            predicted = product_cycles(one.weights, plan)[one.name]
        streamed = one.stream_cycles, one.entered, one.left, one.multiply_adds
        made = LayerPass(*key, 1, one.cycles, *streamed, predicted, one.busy_cycles)
        self.sums[key] = self.sums[key].plus(made) if key in self.sums else made

    def passes(self) -> tuple[LayerPass, ...]:
        """The sums."""
        return tuple(self.sums.values())

    def outlook(self, rows: int, columns: int, generation: str) -> tuple[Outlook, ...]:
        """Products with weights on this rectangle and on a CS-2, by tokens of a PE."""
        passes = [(*key, count) for key, count in self._counts.items()]
        sizes = ((rows, columns), Arch(generation)), (_CS2, Arch.WSE2)
        return tuple(
            Outlook(*size, arch, tokens, one.cycles, one.multiply_adds)
            for size, arch in sizes
            for tokens, one in zip(_TOKENS, on_rectangle(passes, size, arch, _TOKENS), strict=True)
            if passes
        )
