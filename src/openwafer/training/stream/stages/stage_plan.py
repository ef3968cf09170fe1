"""Cuts a model into stages: which has which calls and weights, and which system has which stage."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from openwafer.diagnostics import counted, error
from openwafer.figures import Origin
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import Limit, Mode, PipelineUse, PlannedStage, PlanRecord
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.replicas.ownership import StagePlan
from openwafer.training.stream.stages.flow import Flow, FlowOf


@dataclass(frozen=True)
class HostRooms:
    """What hosts have for stages.

    Attributes:
        names: of the host of each rank, in words.
        room_bytes: by host, for all its ranks together.
        source: where that comes from, in words.
    """

    names: tuple[str, ...]
    room_bytes: Mapping[str, int]
    source: str

    @property
    def equal_bytes(self) -> tuple[int, ...]:
        """What each rank may take where those of a host take as much each."""
        on_host = Counter(self.names)
        return tuple(self.room_bytes[name] // on_host[name] for name in self.names)

    def too_full(self, held_bytes: Sequence[int]) -> str | None:
        """The first host whose ranks hold more than it has for them.

        Args:
            held_bytes: by rank.
        """
        held: Counter[str] = Counter()
        for name, num_bytes in zip(self.names, held_bytes, strict=True):
            held[name] += num_bytes
        return next((name for name in held if held[name] > self.room_bytes[name]), None)


def cut_evenly(
    seconds: Sequence[float],
    may_begin: Sequence[bool],
    num_stages: int,
    fits: Callable[[int, range], bool],
) -> list[range] | None:
    """Stages whose longest is as short as can be; ``None`` where there are none that fit.

    Args:
        seconds: that each call takes.
        may_begin: whether a stage may begin with it; the first always does.
        num_stages: all of which have a call.
        fits: whether a stage of that number has room for such a range of calls.
    """
    num_calls = len(seconds)
    ends = [0.0]
    for one in seconds:
        ends.append(ends[-1] + one)
    # By calls behind them, the longest of the stages so far, and where they begin.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(num_stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (longest, starts) in best.items():
            last = num_calls if stage == num_stages - 1 else num_calls - 1
            for stop in range(start + 1, last + 1):
                is_end = stop == num_calls
                if is_end != (stage == num_stages - 1) or not (is_end or may_begin[stop]):
                    continue
                tried = max(longest, ends[stop] - ends[start]), (*starts, start)
                if (stop not in found or tried < found[stop]) and fits(stage, range(start, stop)):
                    found[stop] = tried
        best = found
    if num_calls not in best:
        return None
    starts = best[num_calls][1]
    return [range(*both) for both in pairwise((*starts, num_calls))]


MAX_LISTED = 5
LayOut = Callable[[Partition], Mapping[str, RecordLayout]]


@dataclass(frozen=True)
class StageNeeds:
    """What a stage holds.

    Attributes:
        weights_bytes: those that it borrows, too.
        gradients_bytes: of them; of several replicas, others than the first keep those of each
            micro-batch apart, and in all of them two records are on their way besides.
        states_bytes: of its own weights, which the first replica alone has.
        activation_bytes: of the micro-batches that are in it at once.
        passing_bytes: of tensors that come from its neighbours.
    """

    weights_bytes: int
    gradients_bytes: int
    states_bytes: int
    activation_bytes: int
    passing_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class StageRequest:
    """What stages are asked for.

    Attributes:
        flow: of the model's forward.
        split: its layers.
        layouts: the records of the split.
        seconds: of each call, forward and backward.
        passing_bytes: by call, what crosses a cut before it.
        num_stages: of each replica.
        blocks: how many micro-batches of a step each replica has.
        received: parameters that get a gradient.
        budget_bytes: of each stage; ``None`` is no cap.
        rooms: what hosts have for all stages of their ranks.
    """

    flow: Flow
    split: Partition
    layouts: Mapping[str, RecordLayout]
    seconds: Sequence[float]
    passing_bytes: Sequence[int]
    num_stages: int
    blocks: Sequence[int]
    received: frozenset[str]
    budget_bytes: int | None
    rooms: HostRooms

    @cached_property
    def last_uses(self) -> Mapping[str, tuple[int, int]]:
        """By parameter, the first and the last call that uses it."""
        numbers = {call.layer: number for number, call in reversed([*enumerate(self.flow.calls)])}
        found = {}
        for record, names in self.split.records.items():
            for name in names:
                # One that this forward passed by may be used in another one.
                uses = self.flow.uses.get(name) or (numbers.get(record, 0),)
                found[name] = min(uses), max(uses)
        return found

    def largest(self, stage: int, span: range) -> int:
        """Bytes of a stage with these calls in the replica that holds most."""
        # The last ones have as many micro-batches as any.
        replicas = {0, len(self.blocks) - 1}
        return max(self.needs(stage, span, one).total_bytes for one in replicas)

    def held(self, spans: Sequence[range]) -> list[int]:
        """Bytes of each rank, where the stages of all replicas have these calls."""
        return [
            self.needs(stage, span, replica).total_bytes
            for replica in range(len(self.blocks))
            for stage, span in enumerate(spans)
        ]

    def _arrays(self, part: Part) -> Iterable[tuple[str, int]]:
        """The arrays of all records, each as the parameter that it is of, with its bytes."""
        for layout in self.layouts.values():
            for place in layout.parts[part]:
                name = (
                    place.spec.name.rpartition("/")[2] if part is Part.STATES else place.spec.name
                )
                yield name, place.num_bytes

    def needs(self, stage: int, span: range, replica: int = 0) -> StageNeeds:
        """What a stage with these calls would hold."""
        own = {name for name, (first, _) in self.last_uses.items() if first in span}
        borrowed = {
            name
            for name, (first, last) in self.last_uses.items()
            if last in span and first not in span
        }
        weights = dict(self._arrays(Part.WEIGHTS))
        states = self._arrays(Part.STATES)
        num_micro_batches = self.blocks[replica]
        in_flight = min(num_micro_batches, self.num_stages - stage)
        left = sum(self.flow.segments[number].activation_bytes for number in span)
        # Each micro-batch has buffers of its own: what comes in, and gradients that come back.
        coming = self.passing_bytes[span.start]
        coming += self.passing_bytes[span.stop] if span.stop < len(self.passing_bytes) else 0
        held = own | borrowed
        is_first = replica == 0
        gradients = sum(weights[name] for name in held & self.received)
        return StageNeeds(
            weights_bytes=sum(weights[name] for name in held),
            gradients_bytes=gradients * (1 if is_first else num_micro_batches)
            + self._summed_bytes(own, weights),
            states_bytes=sum(n for name, n in states if name in own) if is_first else 0,
            activation_bytes=left * in_flight,
            passing_bytes=coming * num_micro_batches,
        )

    def _summed_bytes(self, own: AbstractSet[str], weights: Mapping[str, int]) -> int:
        """Of sums on their way from replica to replica: those of two records."""
        if len(self.blocks) == 1:
            return 0
        records = self.split.records.values()
        trained = own & self.received
        return 2 * max(sum(weights[n] for n in names if n in trained) for names in records)


def plan_stages(request: StageRequest) -> StagePlan:
    """Cut a model into stages of about equal work that fit.

    Raises:
        OpenwaferError: ``pipelined-cuts``, ``pipelined-memory``, ``pipelined-tied``.
    """
    calls = request.flow.calls
    may_begin = [not call.refusal for call in calls]
    if sum(may_begin) + 1 < request.num_stages:
        raise _too_few_cuts(request)
    spans = _fitting_spans(request)
    layers = tuple(dict.fromkeys(call.layer for call in calls))
    dealt, tied = _dealt(request, spans), _tied(request, spans)
    return StagePlan(layers, tuple(spans), dealt, tied, len(request.blocks))


def _fitting_spans(request: StageRequest) -> list[range]:
    """The calls of each stage, whose longest is as short as memory allows."""
    num_stages, rooms, budget = request.num_stages, request.rooms, request.budget_bytes
    spans = _cut(request, [budget] * num_stages)
    if spans is None:
        raise _too_little_memory(request)
    host = rooms.too_full(request.held(spans))
    if host is None:
        return spans
    # Where one host has several stages, or has less than others, other cuts may fit.
    caps = [min(rooms.equal_bytes[stage::num_stages]) for stage in range(num_stages)]
    if budget is not None:
        caps = [min(budget, cap) for cap in caps]
    fitting = _cut(request, caps)
    if fitting is None:
        raise _too_little_on_host(request, spans, host)
    return fitting


def _cut(request: StageRequest, caps: Sequence[int | None]) -> list[range] | None:
    """Stages of about equal work that hold no more than the cap of each."""
    may_begin = [not call.refusal for call in request.flow.calls]

    def fits(stage: int, span: range) -> bool:
        cap = caps[stage]
        return cap is None or request.largest(stage, span) <= cap

    return cut_evenly(request.seconds, may_begin, request.num_stages, fits)


def _stage_of(spans: Sequence[range], call: int) -> int:
    return next(stage for stage, span in enumerate(spans) if call in span)


def _dealt(request: StageRequest, spans: Sequence[range]) -> tuple[Mapping[str, RecordLayout], ...]:
    dealt: list[dict[str, RecordLayout]] = [{} for _ in spans]
    for record, layout in request.layouts.items():
        first = min(request.last_uses[name][0] for name in request.split.records[record])
        dealt[_stage_of(spans, first)][record] = layout
    return tuple(dealt)


def _tied(request: StageRequest, spans: Sequence[range]) -> Mapping[str, tuple[int, int]]:
    tied = {}
    for name, uses in request.flow.uses.items():
        by_stage = [_stage_of(spans, use) for use in uses]
        stages = sorted(set(by_stage))
        if len(stages) == 1:
            continue
        # The gradients of its uses are added from the last to the first.
        if len(stages) > 2 or by_stage.count(stages[0]) > 1:
            raise error(
                "pipelined-tied",
                f"stages {', '.join(map(str, stages))} use {name!r}, the first of them "
                f"{counted(by_stage.count(stages[0]), 'time')}, and their gradients would be "
                "added in another order than on one system",
                help="use fewer systems, so that they are in one stage, or leave streaming.mode "
                "out",
            )
        tied[name] = (stages[0], stages[1])
    return tied


def _too_few_cuts(request: StageRequest) -> Exception:
    refused = [
        f"before {call.layer!r}: {call.refusal}" for call in request.flow.calls[1:] if call.refusal
    ]
    num_cuts = sum(not call.refusal for call in request.flow.calls)
    return error(
        "pipelined-cuts",
        f"the model's forward can be cut in {counted(num_cuts, 'place')}, and "
        f"{request.num_stages} stages need {request.num_stages - 1}",
        notes=tuple(refused[:MAX_LISTED]),
        help="use fewer systems, or leave streaming.mode out",
    )


def _too_little_memory(request: StageRequest) -> Exception:
    spans = _cut(request, [None] * request.num_stages)
    assert spans is not None
    needs = [request.largest(stage, span) for stage, span in enumerate(spans)]
    return error(
        "pipelined-memory",
        f"{request.num_stages} stages do not fit device_memory, {request.budget_bytes:,} bytes "
        f"each: cut into equal work, they need {', '.join(f'{one:,}' for one in needs)}",
        help="use more systems or smaller micro-batches, raise device_memory, or leave "
        "streaming.mode out",
    )


def _too_little_on_host(request: StageRequest, spans: Sequence[range], host: str) -> Exception:
    rooms, num_stages = request.rooms, request.num_stages
    held = {
        rank: num_bytes
        for rank, num_bytes in enumerate(request.held(spans))
        if rooms.names[rank] == host
    }
    told = [
        f"rank {rank} has stage {rank % num_stages}, of {num_bytes:,} bytes"
        for rank, num_bytes in held.items()
    ]
    return error(
        "pipelined-memory",
        f"{host} has {rooms.room_bytes[host]:,} bytes for the stages of its systems, which need "
        f"{sum(held.values()):,} bytes",
        notes=(rooms.source, *told[:MAX_LISTED]),
        help="use more hosts or smaller micro-batches, free memory there, set "
        "streaming.host_memory, or leave streaming.mode out",
    )


@dataclass(frozen=True)
class Staged:
    """The stages of a run.

    Attributes:
        plan: who has what.
        asked: what the stages were asked for.
        flow_of: how forwards go through the layers.
    """

    plan: StagePlan
    asked: StageRequest
    flow_of: FlowOf

    def described(
        self, whole: PlanRecord, updating: float | None, network: NetworkRates | None
    ) -> PlanRecord:
        """The plan in stages as a record.

        Args:
            whole: the plan of one system that has all stages.
            updating: seconds in which it updates all weights; ``None`` where its step has no time.
            network: rates between the systems; ``None`` leaves messages out.
        """
        plan, asked = self.plan, self.asked
        pipeline = PipelineUse(
            self._replica(0),
            sum(asked.blocks),
            plan.num_replicas,
            self._replica(plan.num_replicas - 1) if plan.num_replicas > 1 else (),
        )
        seconds, limit = _time(whole, pipeline, updating, network)
        held = [stage.total_bytes for stage in (*pipeline.stages, *pipeline.others)]
        budget = Origin.GIVEN if asked.budget_bytes else Origin.MEASURED
        return replace(
            whole,
            mode=Mode.PIPELINED,
            systems=plan.num_ranks,
            device_budget_bytes=asked.budget_bytes or min(asked.rooms.equal_bytes),
            predicted_peak_bytes=max(held),
            predicted_host_bytes=None,
            predicted_step_seconds=seconds,
            step_limit=limit,
            pipeline=pipeline,
            stores=None,
            origins={**whole.origins, "device_budget_bytes": budget},
        )

    def _replica(self, replica: int) -> tuple[PlannedStage, ...]:
        spans, asked = self.plan.spans, self.asked
        seconds = [sum(asked.seconds[call] for call in span) for span in spans]
        return tuple(
            PlannedStage(
                first=asked.flow.calls[span.start].layer,
                last=asked.flow.calls[span.stop - 1].layer,
                share=seconds[number] / sum(seconds),
                **vars(asked.needs(number, span, replica)),
            )
            for number, span in enumerate(spans)
        )


def _time(
    whole: PlanRecord, pipeline: PipelineUse, updating: float | None, network: NetworkRates | None
) -> tuple[float | None, Limit | None]:
    """Seconds of a step and what limits it."""
    alone = whole.predicted_step_seconds
    if alone is None or updating is None:
        return None, None
    computing = alone - updating
    seconds = stage_seconds(pipeline, computing, updating, network)
    passes_longest = seconds > 2 * stage_seconds(pipeline, computing, updating, None)
    return seconds, Limit.NETWORK if passes_longest else whole.step_limit


def stage_seconds(
    pipeline: PipelineUse, computing: float, updating: float, network: NetworkRates | None
) -> float:
    """Seconds of a step.

    A micro-batch goes through all stages, and the others of its replica follow it through the
    slowest. Then each stage updates its weights; of several replicas, gradients go along the chain
    before, and new weights behind, while nothing is computed.

    Args:
        pipeline: the stages.
        computing: seconds in which one system runs all micro-batches forward and backward.
        updating: seconds in which it updates all weights.
        network: rates between the systems; ``None`` leaves messages out.
    """
    fewest = pipeline.micro_batches // pipeline.replicas
    turns = []
    for stage in pipeline.stages:
        turn = stage.share * computing / pipeline.micro_batches
        if network is not None:
            turn += stage.passing_bytes / fewest / network.weights
        turns.append(turn)
    largest = max(stage.weights_bytes for stage in pipeline.stages)
    seconds = sum(turns) + (pipeline.block - 1) * max(turns)
    seconds += updating * largest / sum(stage.weights_bytes for stage in pipeline.stages)
    if network is not None and pipeline.replicas > 1:
        seconds += largest / network.gradients + largest / network.weights
    return seconds
