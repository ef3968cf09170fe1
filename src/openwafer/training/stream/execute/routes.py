"""What a pass walks where the model's own code decides which layers it calls."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.execute.passes import PassLog
from openwafer.training.stream.forecast import Forecast
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.schedule import Kind, RecordBytes, Schedule, Visit
from openwafer.training.stream.step_plan import StepPlan, record_bytes

MOST_KEPT: Final = 1000
"""Schedules that are kept for passes to come, which mostly go a way that one has gone before."""


class Routes:
    """Plans the passes of a model that leave the schedule of their plan.

    A pass that calls another layer than the one that comes next has its rest planned from there: by
    a :class:`Forecast` in the forward, by the calls that were made in the backward. The passes
    behind it are planned by the forecast from their beginning. Whatever is foreseen, weights keep
    to the capacity of the plan.

    Args:
        split: the model's layers.
        trained: names of the parameters that may get a gradient.

    Attributes:
        is_forecast: whether what is left of the pass under way is foreseen, and not known.
    """

    def __init__(self, split: Partition, trained: Collection[str]) -> None:
        self._split = split
        self._trained = trained
        self._records_of = {layer.name: layer.records for layer in split.layers}
        self._sizes: dict[bool, dict[str, RecordBytes]] = {}
        # With gradients and without: what is known of passes once one has left its schedule.
        self._forecasts: dict[bool, Forecast] = {}
        # Of the pass under way, as the plan has it; none where it is walked whatever comes.
        self._schedule: Schedule | None = None
        self._is_graded = self.is_forecast = False
        self._made: dict[object, Schedule] = {}

    @contextmanager
    def naming_room(self) -> Iterator[None]:
        """Context of a pass: one that a plan has no room for tells what gives it room."""
        try:
            yield
        except OpenwaferError as found:
            first = found.diagnostics[0]
            if first.code != "device-budget-exceeded" or not self._forecasts:
                raise
            remedy = (
                "set streaming.most_layer_calls to the most layers that a forward calls: passes "
                f"call others than the step that was planned; or {first.help}"
            )
            raise OpenwaferError(replace(first, help=remedy)) from found

    def follow(self, plan: StepPlan) -> None:
        """Keep to the room of a plan."""
        trained = {True: self._trained, False: ()}
        self._sizes = {
            is_graded: record_bytes(self._split, plan.layouts, names)
            for is_graded, names in trained.items()
        }
        self._made.clear()

    def begin(self, schedule: Schedule | None) -> Schedule | None:
        """What a pass walks from its beginning, for which a plan has this schedule."""
        # A dry run follows no plan.
        self._schedule = schedule if self._sizes else None
        self._is_graded = torch.is_grad_enabled()
        forecast = self._forecasts.get(self._is_graded)
        self.is_forecast = schedule is not None and forecast is not None
        if schedule is None or forecast is None:
            return schedule
        calls = forecast.calls_behind(None)
        return self._planned(schedule, calls, self._backward(calls), {})

    def rest(self, kind: Kind, log: PassLog, held: Mapping[str, int]) -> Schedule | None:
        """What is left of a pass that has come to another call than its schedule.

        Args:
            kind: of the call.
            log: its last visit is that call; in the backward, the one that it came to last is.
            held: bytes of the records on the device.

        Returns:
            ``None`` where the schedule stays.
        """
        schedule = self._schedule
        if schedule is None:
            return None
        forward: tuple[str, ...] = ()
        self.is_forecast = kind is Kind.FORWARD
        if kind is Kind.BACKWARD:
            gone_back = set(log.backward)
            left = [name for index, name in enumerate(log.visits) if index not in gone_back]
            backward = (log.visits[log.backward[-1]], *left[::-1])
        else:
            forward = (log.visits[-1], *self._forecast(schedule).calls_behind(log.visits[-1]))
            backward = self._backward((*log.visits[:-1], *forward))
        if not self._fits((*forward, *backward)[0], schedule):
            return None
        return self._planned(schedule, forward, backward, held)

    def end(self, log: PassLog | None) -> None:
        """The pass under way has ended, or has failed where there is no log of it."""
        forecast = self._forecasts.get(self._is_graded)
        if self._schedule is not None and log is not None and forecast is not None:
            forecast.learn(log.visits)
        self._schedule, self.is_forecast = None, False

    def _forecast(self, schedule: Schedule) -> Forecast:
        """The forecast of such passes, which begins with what the plan has seen."""
        if self._is_graded not in self._forecasts:
            self._forecasts[self._is_graded] = forecast = Forecast()
            actions = schedule.actions
            forecast.learn([one.target for one in actions if one.kind is Kind.FORWARD])
        return self._forecasts[self._is_graded]

    def _backward(self, calls: tuple[str, ...]) -> tuple[str, ...]:
        return calls[::-1] if self._is_graded else ()

    def _fits(self, layer: str, schedule: Schedule) -> bool:
        sizes = self._sizes[self._is_graded]
        needed = sum(sizes[record].weights for record in self._records_of[layer])
        return needed <= schedule.capacity_bytes

    def _planned(
        self,
        schedule: Schedule,
        forward: tuple[str, ...],
        backward: tuple[str, ...],
        held: Mapping[str, int],
    ) -> Schedule:
        key = schedule.capacity_bytes, schedule.timing, self._is_graded, forward, backward, (*held,)
        if key not in self._made:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            calls = [
                (kind, Visit(name, self._records_of[name]))
                for kind, names in ((Kind.FORWARD, forward), (Kind.BACKWARD, backward))
                for name in names
                if self._fits(name, schedule)
            ]
            self._made[key] = schedules.walked(
                calls,
                self._sizes[self._is_graded],
                timing=schedule.timing,
                capacity_bytes=schedule.capacity_bytes,
                held=held,
            )
        return self._made[key]
