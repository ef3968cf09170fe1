"""Runs in which all that a run may have meets: bits, memory, bytes moved, and going on.

Of the options below any three meet in the slow rows, and of `OPTIONS_BY_DEFAULT` any two in those
that run by default.
The executor holds every step to its schedule: see OPENWAFER_CHECK_SCHEDULE.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path

import pytest
import torch

from openwafer.training.metrics.run_record import load_run
from openwafer.training.plan_record import Activations, Mode, PlanRecord
from openwafer.training.session import Precision, RunConfig, Session, TrainResult, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.tables import Row, case, covering
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.master_loop import master_loop, saved_masters
from tests.training.session.test_averages import DECAY, PlainAverage
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

SET = SparsityGroup(0.75, AlgorithmName.SET, update=EverySteps(2))
RESIDENT = StreamingConfig(device="cpu", mode=Mode.RESIDENT)
STOP = 2


@dataclass(frozen=True)
class Options:
    """A row of the table."""

    tier: StoreTier
    micro_batches: int
    policy: Activations
    clip_norm: float | None
    precision: Precision
    weights: Weights
    sparsity: SparsityGroup | None
    systems: int
    stores: StoreSystems
    ema: float | None
    optimizer: str

    def __str__(self) -> str:
        clip = "not clipped" if self.clip_norm is None else "clipped"
        density = "dense" if self.sparsity is None else "sparse"
        systems = f"{self.systems} systems with {self.stores} store"
        return (
            f"{self.tier}, {self.micro_batches} batches, {self.policy}, {clip}, {self.precision}, "
            f"{self.weights} weights, {density}, {systems}, ema {self.ema}, {self.optimizer}"
        )

    def config(self, data: TinyData, folder: Path) -> RunConfig:
        config = tiny_config(data, folder, self.tier)
        return replace(
            config,
            steps=STOP + 1,
            model=GPT,
            clip_norm=self.clip_norm,
            precision=self.precision,
            weights=self.weights,
            sparsity=self.sparsity,
            store_systems=self.stores,
            ema=self.ema,
            sparse_products=Products.DENSE,
            optimizer=OptimizerConfig(self.optimizer, learning_rate=1e-3),
            # A cosine would know where a run stops.
            schedule=ScheduleConfig("constant"),
            batch=BatchConfig(size=6, sequence_length=12, micro_batches=self.micro_batches),
            streaming=replace(config.streaming, activations=self.policy),
        )


AXES = (
    TIERS,
    (1, 3),
    tuple(Activations),
    (None, 0.1),
    tuple(Precision),
    tuple(Weights),
    (None, SET),
    (1, 2),
    (StoreSystems.FIRST, StoreSystems.ALL),
    (None, DECAY),
    ("adamw", "sgd", "lion"),
)


def is_allowed(row: Row) -> bool:
    options = Options(*row)
    # Autocast would round weights again that are bf16.
    is_rounded_twice = options.weights is Weights.BF16 and options.precision is Precision.FP16
    shares_nothing = options.systems == 1 and options.stores is StoreSystems.ALL
    is_idle = options.systems > options.micro_batches
    return not (is_idle or is_rounded_twice or shares_nothing)


OPTIONS_BY_DEFAULT = (
    TIERS,
    (1, 3),
    tuple(Activations),
    (None, 0.1),
    (Precision.FP32, Precision.FP16),
    tuple(Weights),
    (None, SET),
    (1, 2),
    (StoreSystems.FIRST, StoreSystems.ALL),
    (None, DECAY),
    ("adamw", "sgd"),
)
PAIRS = covering(OPTIONS_BY_DEFAULT, 2, is_allowed)
TRIPLES = covering(AXES, 3, is_allowed)
ROWS = [
    case(Options(*row), by_default=row in PAIRS, id=str(Options(*row)))
    for row in dict.fromkeys((*PAIRS, *TRIPLES))
]


def expected_of(config: RunConfig, options: Options) -> Mapping[str, torch.Tensor]:
    """What the loop written by hand leaves, or a resident run where there is no such loop."""
    if options.sparsity is not None:
        return saved_arrays(train_quietly(replace(config, name="resident", streaming=RESIDENT)))
    loop = plain_loop if options.weights is Weights.FP32 else master_loop
    average = PlainAverage()
    weights = loop(config, average)
    averages = {} if config.ema is None else average.weights()
    return {**weights, **{f"average/{name}": one for name, one in averages.items()}}


def found_of(result: TrainResult, options: Options) -> Mapping[str, torch.Tensor]:
    """The same of a run."""
    arrays = saved_arrays(result)
    if options.sparsity is not None:
        return arrays
    is_plain = options.weights is Weights.FP32
    weights = saved_parameters(result) if is_plain else saved_masters(result)
    return {**weights, **{name: arrays[name] for name in arrays if name.startswith("average/")}}


def trained(
    config: RunConfig, options: Options, pool: FollowerPool
) -> tuple[TrainResult, PlanRecord]:
    """A run that keeps to the peak of a plan, and that plan; one system stops and goes on.

    Above its budget a device of a run refuses to hold anything.
    """
    if options.systems > 1:
        plan = Session(replace(config, systems=options.systems), console=quiet()).plan()
        capped = replace(config, device_memory=plan.predicted_peak_bytes)
        return pool.train(capped, options.systems), plan
    plan = load_run(train_quietly(replace(config, steps=STOP)).folder).plan
    capped = replace(config, device_memory=plan.predicted_peak_bytes)
    return Session(capped, console=quiet()).resume(), plan


@pytest.mark.parametrize("options", ROWS)
def test_a_run_of_any_options_equals_the_plain_loop_within_its_plan(
    data: TinyData, tmp_path: Path, pool: FollowerPool, options: Options
) -> None:
    config = options.config(data, tmp_path)
    result, plan = trained(config, options, pool)
    assert differing(found_of(result, options), expected_of(config, options)) == []
    known = plan.step_bytes, plan.undone_step_bytes, plan.kept_step_bytes
    moved = {(one.fetch, one.push) for one in known if one is not None}
    for row in load_run(result.folder).metrics.rows if options.systems == 1 else ():
        assert (row.fetch_bytes, row.push_bytes) in moved


def test_any_two_options_meet_by_default() -> None:
    def pairs(rows: Iterable[Row]) -> set[object]:
        return {pair for row in rows for pair in combinations(enumerate(row), 2)}

    assert pairs(PAIRS) == pairs(filter(is_allowed, product(*OPTIONS_BY_DEFAULT)))
