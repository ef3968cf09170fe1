"""The room that a network's activations take on the wafer, without a simulator."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.kernels.resident import Resident
from openwafer.sdk.kernels.resident_plan import Activation, ResidentPlan
from openwafer.sdk.kernels.weight_streams import WeightStreams, Words


class DryResident(Resident):
    """Activations that take their room as those of a run do, and have no values.

    Nothing is compiled, a pass computes nothing and is not counted, and what is read is zeros.
    """

    def close(self) -> None:
        """See :class:`Resident`."""

    def hold(self, values: NDArray[np.float32]) -> Activation:
        """See :class:`Resident`; what the host makes of zeros need not be finite."""
        return super().hold(np.zeros_like(values))

    def _compile(self, plan: ResidentPlan) -> None: ...

    def _begin(self, arena: NDArray[np.float32]) -> None: ...

    def _launch(self, function: str, *arguments: int) -> None: ...

    def _end(self, *_: Any, **__: Any) -> None: ...

    def _write(self, first: int, words: NDArray[np.float32]) -> None: ...

    def _read(self, first: int, count: int) -> NDArray[np.float32]:
        return np.zeros((self.plan.rows, self.plan.columns, count), np.float32)

    def _send(self, streams: WeightStreams, words: Words) -> list[int]:
        return []

    def _receive(self, row: int, count: int, left: list[int]) -> NDArray[np.float32]:
        return np.zeros(count, np.float32)
