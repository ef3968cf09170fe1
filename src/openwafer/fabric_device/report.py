"""Adds passes up by layer and kind, and predicts them for other rectangles."""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels.resident_cycles import on_rectangle, product_cycles
from openwafer.sdk.kernels.resident_plan import Pass, ResidentPlan, Weights, least_ports
from openwafer.training.metrics.fabric_report import LayerPass, Outlook

_TOKENS: Final = (4, 8, 16, 32, 64, 128)
"""Of a PE, with which rectangles are predicted."""
_CS2: Final = 994, 750
"""Rows and columns of a CS-2's PEs that programs use (published)."""

_Key = tuple[str, str, tuple[int, int], bool]


@dataclass
class Tally:
    """Passes by layer and kind, in the order of the first ones.

    Of weights whose pattern changes the newest one stands for those before it.
    """

    sums: dict[tuple[str, str], LayerPass] = field(default_factory=dict)
    _counts: Counter[_Key] = field(default_factory=Counter)
    _newest: dict[_Key, Weights] = field(default_factory=dict)

    def add(self, layer: str, one: Pass, plan: ResidentPlan) -> None:
        """Count a pass of a plan's program."""
        key, predicted = (layer, one.name), 0
        if one.weights is not None:
            known = *key, one.weights.without_bias.matrix.shape, one.weights.has_bias
            self._counts[known] += 1
            self._newest[known] = one.weights
            predicted = product_cycles(one.weights, plan)[one.name]
        streamed = one.stream_cycles, one.entered, one.left, one.multiply_adds
        made = LayerPass(*key, 1, one.cycles, *streamed, predicted, one.busy_cycles)
        self.sums[key] = self.sums[key].plus(made) if key in self.sums else made

    def passes(self) -> tuple[LayerPass, ...]:
        """The sums."""
        return tuple(self.sums.values())

    def outlook(self, plan: ResidentPlan, panels: int) -> tuple[Outlook, ...]:
        """Products with weights on a plan's rectangle and on a CS-2, by tokens of a PE.

        Numbers of tokens for which a PE has no room are left out.

        Args:
            plan: of the program with all layers.
            panels: of its arena that were used at a time.
        """
        passes = [(self._newest[key], key[1], count) for key, count in self._counts.items()]
        sizes = ((plan.rows, plan.columns), plan.arch), (_CS2, Arch.WSE2)
        fitting = (
            (size, arch, [one for one in _TOKENS if _fits(plan, size, one, panels)])
            for size, arch in sizes
        )
        return tuple(
            Outlook(*size, arch, tokens, one.cycles, one.multiply_adds)
            for size, arch, fit in fitting
            if fit
            for tokens, one in zip(fit, on_rectangle(passes, size, arch, fit), strict=True)
            if passes
        )


def _fits(plan: ResidentPlan, size: tuple[int, int], tokens: int, panels: int) -> bool:
    """Whether a rectangle with so many tokens a PE has room for what was held."""
    rows, columns = size
    there = replace(
        plan,
        rows=rows,
        columns=columns,
        num_tokens=tokens * columns,
        num_ports=least_ports(rows),
    )
    return ceil(panels * plan.rows / rows) <= there.num_panels
