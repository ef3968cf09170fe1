"""Forecasts which layers a model calls next, where its code decides that anew in every pass."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

LEAST_CHANCE: Final = 0.5
"""A call that is less likely is not foreseen."""
KEPT_SHARE: Final = 0.75
"""What the passes before one count for, beside it."""
MOST_CALLS: Final = 64


class Forecast:
    """What came behind each layer's call in passes before, the later ones counting for more.

    A call is as likely as all calls before it are, one behind the other. So a layer that is
    repeated until something halts it is foreseen as often as it mostly runs, and behind layers that
    come by chance few are.
    """

    def __init__(self) -> None:
        # By layer, None before the first call: shares of what came behind it, None the end.
        self._behind: dict[str | None, dict[str | None, float]] = {}

    def learn(self, calls: Sequence[str]) -> None:
        """A pass has called these layers, in that order."""
        found: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for layer, behind in pairwise((None, *calls, None)):
            found[layer][behind] += 1
        for layer, counts in found.items():
            before = self._behind.get(layer, {})
            self._behind[layer] = {
                behind: KEPT_SHARE * before.get(behind, 0.0) + counts[behind] / counts.total()
                for behind in {**before, **counts}
            }

    def calls_behind(self, layer: str | None) -> tuple[str, ...]:
        """The calls that are likely behind one of a layer, or from the beginning of a pass."""
        calls: list[str] = []
        chance = 1.0
        while len(calls) < MOST_CALLS and (counts := self._behind.get(layer)):
            layer, share = max(counts.items(), key=lambda one: one[1])
            chance *= share / sum(counts.values())
            if layer is None or chance < LEAST_CHANCE:
                break
            calls.append(layer)
        return tuple(calls)
