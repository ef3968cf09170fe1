"""Plans a run from the device budget: what streams, what stays, what is recomputed.

Every candidate plan is walked by the dry run, those that are only tried without most of the layers
that are like others. The predicted peak of the plan that is chosen is metered, not estimated.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.store.layout import Part, RecordLayout, whole_name
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.execute.pass_watch import StepContract
from openwafer.training.stream.execute.passes import Order
from openwafer.training.stream.forms.weight_form import UsedWholeError
from openwafer.training.stream.layers import (
    Layer,
    Partition,
    parameter_bytes,
    pin,
    unsliced,
)
from openwafer.training.stream.plan.code_watch import UNCOUNTED
from openwafer.training.stream.plan.dry_run import (
    DryRun,
    DryRunSettings,
    DryStep,
    like_earlier_ones,
    resident_run,
)
from openwafer.training.stream.plan.operators import StepCalls
from openwafer.training.stream.plan.placement import (
    HostBudget,
    record_without_room,
    too_large_to_update,
)
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.schedule import RecordBytes, Schedule, UpdateTiming
from openwafer.training.stream.step_plan import StepPlan, record_bytes, too_many_calls

MAX_LISTED_NAMES: Final = 100


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for.

    Attributes:
        workload: the step.
        split: the model's layers.
        lay_out: makes the records of a split; called again when the split changes.
        torch_device: where the step runs.
        budget_bytes: device bytes that may be used; ``None`` is no cap.
        timing: when records are updated.
        resident_state_bytes: bytes of optimizer state, masters and the like of a resident run.
        overhead_bytes: device bytes that a step takes beside its tensors.
        overlaps: whether fetches run beside compute, so that space for the next layer pays.
        mode: forces resident or streamed.
        activations: forces a policy for layers by name.
        default_activations: forces the policy of the layers not named.
        prefetch_layers: forces how many visits ahead fetches run.
        most_layer_calls: of a forward, for which there is to be room.
    """

    workload: Workload
    split: Partition
    lay_out: Callable[[Partition], Mapping[str, RecordLayout]]
    torch_device: torch.device
    budget_bytes: int | None
    timing: UpdateTiming
    resident_state_bytes: int = 0
    overhead_bytes: int = 0
    overlaps: bool = True
    mode: Mode | None = None
    activations: Mapping[str, Activations] = field(default_factory=dict)
    default_activations: Activations | None = None
    prefetch_layers: int | None = None
    most_layer_calls: int | None = None


@dataclass(frozen=True)
class StreamPlan(StepPlan):
    """A step's plan with what was predicted of it.

    Attributes:
        predicted_peak_bytes: device bytes at the peak of the step: those of tensors, as metered by
            a dry run, and the device's overhead.
        dry: the dry run of this plan; in a resident run, of one that streams on demand, apart from
            the activations.
        calls: of operators in a step.
        changed: names of what its forwards change; on several systems, of what other forwards read.
    """

    predicted_peak_bytes: int
    dry: DryRun
    calls: StepCalls
    changed: tuple[str, ...] = ()

    @property
    def contract(self) -> StepContract:
        """What passes by the plan are held to, without what was predicted of it."""
        return StepContract(
            self.without_predictions(),
            self.dry.kinds,
            self.predicted_peak_bytes,
            self.dry.left_bytes,
            self.dry.depends_on_values or self.dry.leaves_out,
        )


@dataclass(frozen=True)
class Shortfall:
    """The leanest plan, which does not fit.

    Attributes:
        which: plan.
        peak_bytes: that it needs.
        run: of it.
    """

    which: str
    peak_bytes: int
    run: DryRun


def try_plan(request: PlanRequest) -> StreamPlan | Shortfall:
    """The fastest plan that fits the budget, or what the leanest would need."""
    return foreseen_plan(request) or walked_plan(request)


def walked_plan(request: PlanRequest) -> StreamPlan | Shortfall:
    """As :func:`try_plan`, with nothing foreseen: the first walk tells all of both passes."""
    search, budget = _Search(request), request.budget_bytes
    shortfalls: list[Shortfall] = []
    least_resident = search.least_resident_bytes()
    may_be_resident = request.mode is None and _fits(least_resident, budget)
    if may_be_resident or request.mode is Mode.RESIDENT:
        resident = search.resident()
        if isinstance(resident, StreamPlan):
            return resident
        shortfalls.append(resident)
    if request.mode is not Mode.RESIDENT:
        streamed = search.streamed()
        if isinstance(streamed, StreamPlan):
            return streamed
        shortfalls.append(streamed)
        # Real tensors are not walked for a refusal.
        is_cheap = request.mode is None and not search.first.depends_on_values
        if is_cheap and not may_be_resident and least_resident < streamed.peak_bytes:
            resident = search.resident()
            if isinstance(resident, StreamPlan):
                return resident
            shortfalls.append(resident)
    return min(shortfalls, key=lambda shortfall: shortfall.peak_bytes)


def foreseen_plan(request: PlanRequest) -> StreamPlan | None:
    """The plan of :func:`walked_plan` after a first walk that has no backward, where that will do.

    Its backward would tell which layers cannot be recomputed, which is of no concern where policies
    are given or all activations fit, and what goes back and gets a gradient, which mostly is all
    that may. The walk of the plan itself then shows whether that holds.

    Returns:
        ``None`` where it does not, or where the first walk is asked for more.
    """
    split = request.split
    is_given = request.budget_bytes is None or request.default_activations is not None
    is_plain = not split.sliced and all(layer.parent is None for layer in split.layers)
    is_streamed = request.mode is Mode.STREAMED and request.workload.is_graded
    # What is frozen mostly lies in front, where no backward comes.
    is_trained = all(one.requires_grad for one in request.workload.model.parameters())
    if not (is_given and is_plain and is_streamed and is_trained):
        return None
    try:
        search = _Search(request, goes_back=False)
        found = None if search.first.changed else search.streamed()
    except (OpenwaferError, UsedWholeError):
        return None  # A whole first walk tells of it.
    return found if isinstance(found, StreamPlan) and search.has_foreseen(found.dry) else None


def _fits(peak: int, budget: int | None) -> bool:
    return budget is None or peak <= budget


def dry_run_of(request: PlanRequest, plan: StepPlan) -> DryRun:
    """Walk a plan over the workload of a request, which need not be the one it was made for."""
    return dry_step_of(request, plan).run()


def dry_step_of(request: PlanRequest, plan: StepPlan) -> DryStep:
    """What walks a plan over the workload of a request; see :func:`dry_run_of`."""
    settings = DryRunSettings(
        plan.policies,
        plan.schedule if request.workload.is_graded else plan.forward_schedule,
        plan.nested_capacity_bytes,
        request.overlaps,
        request.overhead_bytes,
    )
    torch_device = request.torch_device
    return DryStep(request.workload, plan.split, plan.layouts, torch_device, settings)


@dataclass(frozen=True)
class _Tried:
    """A plan that was walked, in part at least."""

    schedule: Schedule
    policies: Mapping[str, Activations]
    run: DryRun


class _Search:
    """Tries plans from lean to fast, each with a dry run.

    Args:
        request: what is planned.
        goes_back: whether the first run has a backward; without it, see :meth:`has_foreseen`.
    """

    def __init__(self, request: PlanRequest, *, goes_back: bool = True) -> None:
        self.request = request
        self.goes_back = goes_back
        self._split_as(request.split)
        self.reasons: dict[str, str] = {}
        # Of these, the layers whose activations are right only where they are kept.
        self.kept: frozenset[str] = frozenset()
        # Until that is known.
        self.is_changed = True
        self.first = self._first()
        while self.first.misused:
            whole = self.split.sliced & set(self.first.misused)
            others = [name for name in self.first.misused if name not in whole]
            self._split_as(pin(unsliced(self.split, whole), others))
            self.first = self._first()
        self.changed, self.harmless = self.first.changed, tuple[str, ...]()
        if self.changed and request.workload.meets_others:
            self._tell_harmless()
        self.is_changed = self.first.order > Order.FALLING
        self.sizes = self._sizes(self.first.received if goes_back else self._may_receive())
        self.visits = self.first.visits
        # Of layers that may be skipped, and do no more than compute.
        is_fake = not self.first.depends_on_values
        forms = self.first.forms.items() if is_fake else ()
        self.forms = {name: form for name, form in forms if name not in self.reasons}
        self.known: dict[object, DryRun] = {}
        self._check_named_layers()

    def _tell_harmless(self) -> None:
        """Find the changes that are no concern of other systems."""
        policies = dict.fromkeys(self.reasons, Activations.KEEP)
        self.harmless = self._step(self._settings(policies, None)).harmless_changes()
        self.changed = tuple(name for name in self.changed if name not in self.harmless)
        if not self.changed:
            self.first = replace(self.first, order=Order.FALLING)

    def _sizes(self, received: Collection[str]) -> dict[str, RecordBytes]:
        return record_bytes(self.split, self.layouts, received)

    def _may_receive(self) -> list[str]:
        return [name for name, _ in self.request.workload.model.named_parameters()]

    def has_foreseen(self, run: DryRun) -> bool:
        """Whether the run of a plan, which goes back, is as this search took it to be."""
        first = self.first
        is_met = not (run.reasons or run.misused)
        is_like = run.visits == first.visits and run.depends_on_values == first.depends_on_values
        sizes, visited = self._sizes(run.received), {*chain(*(one.records for one in run.visits))}
        return is_met and is_like and all(sizes[one] == self.sizes[one] for one in visited)

    def _first(self) -> DryRun:
        """A run on demand, in which every layer recomputes that can, if it goes back."""
        if not self.goes_back:
            policies = {name: self._asked_for(name) or Activations.KEEP for name in self.names}
            run = self._dry(policies, None, finds_reasons=True)
            self.reasons = dict(run.reasons)
            return replace(run, visits=tuple(replace(v, has_backward=True) for v in run.visits))
        while True:
            policies = dict.fromkeys(self.reasons, Activations.KEEP)
            try:
                run = self._dry(policies, None, finds_reasons=True)
            except UsedWholeError as found:
                self._split_as(unsliced(self.split, {found.name}))
                continue
            self.kept |= run.uncounted
            if run.reasons.keys() <= self.reasons.keys():
                return run
            self.reasons = {**run.reasons, **self.reasons}

    def _split_as(self, split: Partition) -> None:
        self.split, self.layouts = split, self.request.lay_out(split)
        self.names = [layer.name for layer in split.layers if layer.parent is None]
        self.nested_capacity_bytes = self.least_nested_bytes

    def _dry(
        self,
        policies: Mapping[str, Activations],
        schedule: Schedule | None,
        *,
        finds_reasons: bool = False,
    ) -> DryRun:
        settings = self._settings(policies, schedule)
        goes_back = self.goes_back or not finds_reasons
        settings = replace(settings, finds_reasons=finds_reasons, goes_back=goes_back)
        run = self._step(settings).run()
        return _with_room(run, self.request.most_layer_calls)

    def _settings(
        self, policies: Mapping[str, Activations], schedule: Schedule | None
    ) -> DryRunSettings:
        return DryRunSettings(
            policies,
            schedule,
            self.nested_capacity_bytes,
            self.request.overlaps,
            self.request.overhead_bytes,
            is_changed=self.is_changed,
        )

    def _step(self, settings: DryRunSettings) -> DryStep:
        request = self.request
        return DryStep(request.workload, self.split, self.layouts, request.torch_device, settings)

    def _try(self, policies: Mapping[str, Activations], schedule: Schedule) -> _Tried:
        """A run without the layers that are like others, if the model does without them."""
        key = self.nested_capacity_bytes, schedule.capacity_bytes, tuple(policies.items())
        if key not in self.known:
            self.known[key] = self._shortened(policies, schedule) or self._dry(policies, schedule)
        return _Tried(schedule, policies, self.known[key])

    def _shortened(self, policies: Mapping[str, Activations], schedule: Schedule) -> DryRun | None:
        names = [visit.layer for visit in self.visits]
        skipped = like_earlier_ones(names, self.forms, policies)
        if not skipped:
            return None
        settings = replace(self._settings(policies, schedule), skipped=skipped)
        found = self._step(settings).run_shortened()
        if found is None:
            self.forms = {}
        return found

    def least_resident_bytes(self) -> int:
        """What the plain loop needs at least, so that a walk of it may be spared.

        At the end of its backward it holds all weights and gradients at once.
        """
        parameters = dict(self.request.workload.model.named_parameters())
        held = sum(parameter.nbytes for parameter in parameters.values())
        received = {whole_name(name) for name in self.first.received}
        held += sum(parameters[name].nbytes for name in received)
        return held + self.request.resident_state_bytes

    def resident(self) -> StreamPlan | Shortfall:
        """The plan of the plain loop, if it fits."""
        request = self.request
        resident = resident_run(request.workload, self.names, request.torch_device)
        peak = resident.peak_bytes + request.resident_state_bytes + request.overhead_bytes
        is_host = request.torch_device.type == "cpu"
        run = replace(
            self.first,
            activation_bytes=resident.activation_bytes,
            host_bytes=resident.peak_bytes - resident.weights_bytes if is_host else 0,
        )
        if not _fits(peak, request.budget_bytes):
            return Shortfall("the resident plan", peak, run)
        split = unsliced(self.split, self.split.sliced)
        return replace(
            self.plan(None, {}, run),
            mode=Mode.RESIDENT,
            split=split,
            layouts=request.lay_out(split),
            predicted_peak_bytes=peak,
            calls=resident.calls,
        )

    def _check_named_layers(self) -> None:
        for name in self.request.activations:
            if name not in self.names:
                raise error(
                    "layer-unknown",
                    f"activations are set for {name!r}, which is none of the model's "
                    f"{len(self.names)} layers",
                    help=did_you_mean(name, self.names[:MAX_LISTED_NAMES]),
                )

    @property
    def least_nested_bytes(self) -> int:
        """Device bytes of the largest layer that is nested in another."""
        nested = (layer for layer in self.split.layers if layer.parent is not None)
        return max((self._nested_bytes(layer) for layer in nested), default=0)

    @property
    def most_nested_bytes(self) -> int:
        """Device bytes of the experts that one layer uses, most of all layers."""
        used = self.first.experts_used
        by_layer: Counter[str] = Counter()
        for layer in self.split.layers:
            if layer.parent is not None and layer.name in used:
                by_layer[layer.parent] += self._nested_bytes(layer)
        return max(self.least_nested_bytes, *by_layer.values(), 0)

    def _nested_bytes(self, layer: Layer) -> int:
        return sum(self.layouts[record].part_bytes(Part.WEIGHTS) for record in layer.records)

    def capacities(self) -> list[int]:
        """Device bytes for weights worth trying, small to large."""
        needs = sorted(
            {visit.layer: self._weights_of(visit.records) for visit in self.visits}.values()
        )
        smallest = needs[-1] if needs else 0
        if not self.request.overlaps or len(needs) < 2:
            return [smallest]
        return [smallest, smallest + needs[-2]]

    def _weights_of(self, records: Sequence[str]) -> int:
        return sum(self.sizes[record].weights for record in records)

    def schedule(self, capacity_bytes: int) -> Schedule:
        return schedules.build(
            self.visits,
            self.sizes,
            timing=self.request.timing,
            capacity_bytes=capacity_bytes,
            prefetch_layers=self.request.prefetch_layers,
        )

    def streamed(self) -> StreamPlan | Shortfall:
        """The fastest plan that streams, with room for all experts of a layer where that fits."""
        self._check_recomputed_layers()
        least, most = self.least_nested_bytes, self.most_nested_bytes
        found = self._streamed(most)
        if isinstance(found, Shortfall) and most > least:
            assert self.request.budget_bytes is not None
            room = most - (found.peak_bytes - self.request.budget_bytes)
            found = self._streamed(max(room, least))
            if isinstance(found, Shortfall) and room > least:
                found = self._streamed(least)
        return found

    def _streamed(self, nested_bytes: int) -> StreamPlan | Shortfall:
        self.nested_capacity_bytes = nested_bytes
        tried = self._best()
        if not tried.run.is_whole:
            run = self._dry(tried.policies, tried.schedule)
            is_confirmed = run.peak_bytes == tried.run.peak_bytes
            tried = replace(tried, run=run) if is_confirmed else self._best_without_skipping()
        tried = replace(tried, run=self._with_first_step(tried))
        if not _fits(tried.run.peak_bytes, self.request.budget_bytes):
            return Shortfall("the leanest streamed plan", tried.run.peak_bytes, tried.run)
        return self.plan(tried.schedule, tried.policies, tried.run)

    def _with_first_step(self, tried: _Tried) -> DryRun:
        """The run of a plan with the peaks of a step whose micro-batches go in another order."""
        if self.first.order is Order.FALLING:
            return tried.run
        settings = self._settings(tried.policies, tried.schedule)
        first = self._step(replace(settings, order=self.first.order)).run()
        return replace(
            tried.run,
            peak_bytes=max(tried.run.peak_bytes, first.peak_bytes),
            host_bytes=max(tried.run.host_bytes, first.host_bytes),
        )

    def _best_without_skipping(self) -> _Tried:
        """Layers that run the same operators have turned out not to be alike."""
        self.forms = {}
        self.known.clear()
        return self._best()

    def _best(self) -> _Tried:
        """The fastest that fits, or the leanest."""
        schedules = [self.schedule(capacity) for capacity in self.capacities()]
        full = self._full(schedules[-1])
        if full is not None:
            return full
        best: _Tried | None = None
        for schedule in schedules:
            chosen, lean = self._leanest(schedule)
            if not _fits(lean.run.peak_bytes, self.request.budget_bytes):
                return best or lean
            best = self._fastest(chosen, lean)
        assert best is not None
        return best

    def _full(self, schedule: Schedule) -> _Tried | None:
        """The run that keeps all activations, if it fits; one walk then replaces those of others.

        Real tensors are walked for it only where the lean run was found to fit.
        """
        budget = self.request.budget_bytes
        if self.first.depends_on_values and budget is not None:
            return None
        full = self._try(self._policies([Activations.KEEP] * len(self.names)), schedule)
        return full if _fits(full.run.peak_bytes, budget) else None

    def _asked_for(self, name: str) -> Activations | None:
        return self.request.activations.get(name, self.request.default_activations)

    def _check_recomputed_layers(self) -> None:
        for name in sorted(self.kept):
            asked = self._asked_for(name)
            if asked not in (None, Activations.KEEP):
                raise error(
                    "activations-uncounted",
                    f"the activations of layer {name!r} are set to {asked}, and {UNCOUNTED}",
                    help="write to a copy, with .clone(), or keep its activations: "
                    f"activations: {{{name}: keep}}",
                )
        for name, reason in self.reasons.items():
            if self._asked_for(name) is Activations.RECOMPUTE:
                raise error(
                    "recompute-impossible",
                    f"the activations of layer {name!r} are set to recompute, and it cannot run "
                    f"again as it ran: {reason}",
                    help="leave its activations to the plan, or keep or offload them: "
                    f"activations: {{{name}: keep}}",
                )

    def _policies(self, chosen: Sequence[Activations]) -> dict[str, Activations]:
        """The policy of every layer: what was asked for, else what was chosen."""
        return {
            name: self._asked_for(name) or (Activations.KEEP if name in self.kept else policy)
            for name, policy in zip(self.names, chosen, strict=True)
        }

    def _recomputing(self, instead: Activations) -> list[Activations]:
        """Every layer recomputes but those that cannot."""
        return [instead if name in self.reasons else Activations.RECOMPUTE for name in self.names]

    def _leanest(self, schedule: Schedule) -> tuple[list[Activations], _Tried]:
        """Recompute every layer, or offload every layer where that alone fits.

        What cannot be recomputed is kept, or offloaded where that alone fits.
        """
        candidates = [self._recomputing(Activations.KEEP)]
        if self.reasons:
            candidates.append(self._recomputing(Activations.OFFLOAD))
        candidates.append([Activations.OFFLOAD] * len(self.names))
        found = []
        for chosen in candidates:
            tried = self._try(self._policies(chosen), schedule)
            found.append((chosen, tried))
            if _fits(tried.run.peak_bytes, self.request.budget_bytes):
                return chosen, tried
        return min(found, key=lambda item: item[1].run.peak_bytes)

    def _fastest(self, chosen: list[Activations], lean: _Tried) -> _Tried:
        """Keep the activations of as many layers, counted from the last, as fit."""
        total, budget = len(self.names), self.request.budget_bytes
        if self.request.default_activations is not None:
            return lean
        better = [Activations.KEEP] * total
        if Activations.RECOMPUTE not in chosen:
            better = self._recomputing(Activations.OFFLOAD)

        def tried(number: int) -> _Tried:
            first = total - number
            return self._try(self._policies(chosen[:first] + better[first:]), lean.schedule)

        def expected() -> int:
            return self._number_expected(tried(total).run, lean.run)

        return tried(largest_that_fits(total, lambda n: tried(n).run.peak_bytes, budget, expected))

    def _number_expected(self, full: DryRun, lean: DryRun) -> int:
        """How many layers may keep what they do in a full run, by what each leaves behind."""
        budget, peak, number = self.request.budget_bytes, full.peak_bytes, len(self.names)
        growth = full.left_by_layer()
        growth.subtract(lean.left_by_layer())
        for name in self.names:
            if _fits(peak, budget):
                break
            peak, number = peak - growth[name], number - 1
        return number

    def plan(
        self, schedule: Schedule | None, policies: Mapping[str, Activations], run: DryRun
    ) -> StreamPlan:
        return StreamPlan(
            mode=Mode.STREAMED,
            split=self.split,
            layouts=self.layouts,
            predicted_peak_bytes=run.peak_bytes,
            schedule=schedule,
            policies=policies,
            nested_capacity_bytes=self.nested_capacity_bytes,
            received=run.received,
            micro_batches=len(self.request.workload.batches),
            dry=run,
            calls=run.calls,
            changed=self.changed,
            harmless=self.harmless,
            most_layer_calls=self.request.most_layer_calls,
        )


def _with_room(run: DryRun, most_calls: int | None) -> DryRun:
    """The run with room for more calls of each micro-batch, which leave what the largest leaves.

    Raises:
        OpenwaferError: ``layer-calls-exceeded``.
    """
    if most_calls is None:
        return run
    longest = max(run.forwards, key=len)
    if len(longest) > most_calls:
        raise too_many_calls(run.visits[longest[most_calls]].layer, len(longest), most_calls)
    shares = Counter(chain.from_iterable(run.forwards))
    sizes = (-(-run.activation_bytes[visit] // share) for visit, share in shares.items())
    num_more = sum(most_calls - len(calls) for calls in run.forwards)
    more_bytes = num_more * max(sizes, default=0)
    return replace(
        run, left_bytes=run.left_bytes + more_bytes, peak_bytes=run.peak_bytes + more_bytes
    )


def largest_that_fits(
    total: int,
    peak_of: Callable[[int], int],
    budget: int | None,
    expected: Callable[[], int] | None = None,
) -> int:
    """The largest number up to ``total`` whose peak is within a budget in bytes; that of 0 is.

    Peaks grow with the number, mostly as a straight line does, so a try is where a line through
    the nearest peaks meets the budget. One that leaves more than half is followed by one that
    halves what is left. The first try is the number that is ``expected``, if that is given: it is
    asked once the peaks at both ends are known.
    """
    low, above = (0, peak_of(0)), (total, peak_of(total))
    if budget is None or above[1] <= budget:
        return total
    halves = False
    while above[0] - low[0] > 1:
        width = above[0] - low[0]
        step = width * (budget - low[1]) // (above[1] - low[1])
        if expected is not None:
            step, expected = expected() - low[0], None
        middle = low[0] + (width // 2 if halves else min(max(step, 1), width - 1))
        peak = peak_of(middle)
        low, above = ((middle, peak), above) if peak <= budget else (low, (middle, peak))
        halves = 2 * (above[0] - low[0]) > width
    return low[0]


SplitAt: TypeAlias = Callable[..., Partition]
"""Makes the split whose layers are no larger than ``max_layer_bytes``, where they can be split."""
LAYERS_IN_BUDGET: Final = 3


def split_for_host(
    model: nn.Module,
    split_at: SplitAt,
    shares: Callable[[Partition], Iterable[tuple[Mapping[str, RecordLayout], HostBudget]]],
) -> SplitAt:
    """Splits no coarser than the hosts can update, record by record.

    Args:
        model: what is split.
        split_at: makes splits of any size.
        shares: makes the records of a split, those of each store, with what that may use.

    Raises:
        OpenwaferError: ``host-memory-too-small`` when a record of the finest split is too large,
            ``store-too-large`` when all of them are and may not go to a disk.
    """
    too_large: tuple[RecordLayout, HostBudget] | None = None
    sizes = sorted({0, *map(parameter_bytes, model.modules())}, reverse=True)
    for limit in (None, *sizes):
        too_large = _without_room(shares(split_at(max_layer_bytes=limit)))
        if too_large is None:
            return split_at if limit is None else partial(_no_coarser, split_at, limit)
    assert too_large is not None
    raise too_large_to_update(*too_large)


def _without_room(
    shares: Iterable[tuple[Mapping[str, RecordLayout], HostBudget]],
) -> tuple[RecordLayout, HostBudget] | None:
    for layouts, host in shares:
        record = record_without_room(layouts, host)
        if record is not None:
            return record, host
    return None


def _no_coarser(
    split_at: SplitAt, most_bytes: int, max_layer_bytes: int | None = None
) -> Partition:
    limit = most_bytes if max_layer_bytes is None else min(max_layer_bytes, most_bytes)
    return split_at(max_layer_bytes=limit)


def make_plan(request: PlanRequest, split_at: SplitAt) -> StreamPlan:
    """Choose the fastest plan that fits the budget.

    Args:
        request: what is planned; its split is one of those tried.
        split_at: makes the splits.

    Raises:
        OpenwaferError: ``device-budget-too-small`` when even the leanest plan does not fit, with
            the smallest budget that does.
    """
    model, budget = request.workload.model, request.budget_bytes
    most_bytes = None if budget is None else budget // LAYERS_IN_BUDGET
    splits, least = list[Partition](), list[Shortfall]()
    for split in _splits(model, split_at, most_bytes):
        found = try_plan(replace(request, split=split))
        if isinstance(found, StreamPlan):
            return found
        splits.append(split)
        least.append(found)
    assert budget is not None
    smallest = min(least, key=lambda one: one.peak_bytes)
    # Larger layers leave less room to fetch ahead, and may yet need the least.
    for split in _splits(model, split_at, smallest.peak_bytes):
        if split in splits:
            continue
        found = try_plan(replace(request, split=split))
        if isinstance(found, StreamPlan):
            return found
        smallest = min(smallest, found, key=lambda one: one.peak_bytes)
    raise _too_small(smallest, budget)


def _splits(model: nn.Module, split_at: SplitAt, most_bytes: int | None) -> Iterator[Partition]:
    """Different splits whose layers are no larger where they can be split, coarse to fine."""
    if most_bytes is None:
        yield split_at(max_layer_bytes=None)
        return
    sizes = {parameter_bytes(module) for module in model.modules()}
    last = None
    for limit in sorted({0} | {size for size in sizes if size <= most_bytes}, reverse=True):
        split = split_at(max_layer_bytes=limit)
        if split != last:
            yield split
        last = split


def _too_small(shortfall: Shortfall, budget: int) -> OpenwaferError:
    run, peak = shortfall.run, shortfall.peak_bytes
    largest = max(
        zip(run.activation_bytes, (visit.layer for visit in run.visits), strict=False),
        default=(0, "none"),
    )
    return error(
        "device-budget-too-small",
        f"{shortfall.which} needs {peak:,} bytes on the device, and the budget is {budget:,} bytes "
        f"({peak - budget:,} short)",
        notes=(f"the forward of {largest[1]!r} leaves {largest[0]:,} bytes, more than any other",),
        help="raise the device budget, or lower the micro-batch size or the sequence length",
    )
