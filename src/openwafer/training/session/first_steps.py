"""The first steps of a run say how long a step takes, and correct its plan."""

from dataclasses import replace
from statistics import median
from typing import Final

from openwafer import atomic_file
from openwafer.figures import Origin
from openwafer.training.metrics import StepMetrics
from openwafer.training.session.opened_run import OpenedRun
from openwafer.training.stream.device.device import ALWAYS_METERED
from openwafer.training.stream.plan.report import to_json

# One of them may be run again, or be held up by another program.
NUM_STEPS: Final = 3


class FirstSteps:
    """Writes into plan.json what the first steps take that nothing meters.

    Args:
        run: in whose folder the plan is.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._num_metered = 0
        self._seconds: list[float] = []

    def note(self, metrics: StepMetrics) -> None:
        """A step has ended; one of a smaller batch than the plan's says nothing of that."""
        sizes = self._run.config.batch.sizes
        if self._num_metered < ALWAYS_METERED:
            self._num_metered += 1
        elif len(self._seconds) < NUM_STEPS and sizes.at(metrics.step) == max(sizes.all):
            self._seconds.append(metrics.seconds)
            if len(self._seconds) == NUM_STEPS:
                self._correct(median(self._seconds))

    def _correct(self, seconds: float) -> None:
        plan = self._run.planned.report
        if plan.predicted_step_seconds is None:
            return
        origins = {**plan.origins, "predicted_step_seconds": Origin.MEASURED}
        plan = replace(plan, predicted_step_seconds=seconds, origins=origins)
        atomic_file.write_text(self._run.folder.plan, to_json(plan))
