"""``openwafer ablate`` compares, draws and writes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from openwafer.cli.ablation_record import (
    AblationRecord,
    Cost,
    LawReading,
    Result,
    Worth,
    write_ablation,
)
from openwafer.cli.ablation_tables import show_ablation
from openwafer.cli.run_points import StepCounts, point_of
from openwafer.cli.swept_runs import run_sweep
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, tell
from openwafer.planning.laws import TrainedPoint
from openwafer.training.methods.law import LawWatch, make_watch
from openwafer.training.metrics import load_run
from openwafer.training.session import load_config
from openwafer.training.session.building import prepare_data
from openwafer.training.session.run_conditions import token_identity
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sweep import Ablation, Difference, Outcome, Sweep, Variant
from openwafer.training.sweep.ablation import (
    parse_axis,
    read_variants,
    require_variants,
    telling_of,
    variants_of,
)
from openwafer.training.sweep.sweep import difference_of, outcomes_of

Watches = Mapping[str, LawWatch]
"""What a law says of variants, by their names."""


@dataclass(frozen=True)
class Asked:
    """A comparison that was asked for.

    Attributes:
        vary: keys with values, as written.
        variants: a file of variants; None for none.
        seeds: number of seeds.
        law: a file that ``openwafer fit --json`` wrote; None for none.
    """

    vary: tuple[str, ...]
    variants: Path | None
    seeds: int
    law: Path | None


@dataclass(frozen=True)
class Outputs:
    """Folder of the runs, and files to write; None for none."""

    folder: Path
    picture: Path | None
    json: Path | None


def ablate_config(config: Path, overrides: list[str], asked: Asked, outputs: Outputs) -> None:
    """Train the baseline and its variants, tell their differences, and write them down."""
    varied = [variant for text in asked.vary for variant in variants_of(parse_axis(text))]
    written = () if asked.variants is None else read_variants(asked.variants)
    first = load_config(config, tuple(overrides)).seed
    ablation = Ablation((*varied, *written), tuple(range(first, first + asked.seeds)))
    require_variants(config, overrides, ablation)
    sweep = Sweep(config, overrides, ablation, outputs.folder)
    counts = StepCounts()
    for variant in ablation.rows:
        # A model that cannot be built is told before the first run, not in its turn.
        with telling_of(variant):
            counts.of(sweep.config_of(variant.setting))
    watches = {} if asked.law is None else _watches(asked.law, sweep, ablation, counts)
    run_sweep(sweep)
    results = _results(sweep, ablation, counts, watches)
    law = None if asked.law is None else str(asked.law)
    record = AblationRecord(str(config), ablation.seeds, law, tuple(results))
    show_ablation(record)
    if outputs.json is not None:
        write_ablation(outputs.json, record)
        print(f"wrote {outputs.json}")
    if outputs.picture is not None:
        from openwafer.cli.ablation_picture import draw_ablation

        draw_ablation(outputs.picture, record)
        print(f"wrote {outputs.picture}")


def _watches(law: Path, sweep: Sweep, ablation: Ablation, counts: StepCounts) -> Watches:
    """The law beside each variant whose conditions are the law's; the others are warned of.

    Raises:
        OpenwaferError: ``law-file``; ``law-conditions`` where it does not speak of the baseline.
    """
    base = sweep.config_of(ablation.rows[0].setting)
    identity = token_identity(prepare_data(base, RunFolder(base.path), print))
    found: dict[str, LawWatch] = {}
    for variant in ablation.rows:
        config = sweep.config_of(variant.setting)
        try:
            with telling_of(variant):
                watch = make_watch(law, config, counts.of(config), identity, "--law ")
        except OpenwaferError as refusal:
            if not found or refusal.diagnostics[0].code != "law-conditions":
                raise
            tell(replace(each, severity=Severity.WARNING) for each in refusal.diagnostics)
            continue
        found[variant.name] = watch
        tell(_of(variant, watch.remarks()))
    return found


def _of(variant: Variant, warnings: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    for warning in warnings:
        yield replace(warning, notes=(*warning.notes, f"of the variant {variant.name!r}"))


def _results(
    sweep: Sweep, ablation: Ablation, counts: StepCounts, watches: Watches
) -> Iterator[Result]:
    outcomes = outcomes_of(ablation, sweep.runs)
    baseline, base_point = outcomes[0], None
    base_watch = watches.get(ablation.rows[0].name)
    for variant, outcome in zip(ablation.rows, outcomes, strict=True):
        difference = None if outcome is baseline else difference_of(baseline, outcome)
        point, seconds = _trained(sweep, outcome, counts)
        base_point = point if outcome is baseline else base_point
        watch, law = watches.get(variant.name), None
        if watch is not None and base_watch is not None:
            worth = _worth(base_watch, baseline.mean, difference)
            law = _reading(watch, base_watch, outcome, worth)
        cost = None
        if point is not None and point.parameters is not None:
            ratio = None if base_point is None else point.flops / base_point.flops
            cost = Cost(point.flops, ratio, point.parameters, seconds)
        yield Result(
            variant.name,
            variant.setting,
            outcome.losses,
            outcome.mean,
            difference,
            cost,
            law,
        )


def _trained(
    sweep: Sweep, outcome: Outcome, counts: StepCounts
) -> tuple[TrainedPoint | None, float]:
    """A run as ``openwafer fit`` reads it, of those that did not diverge, and seconds of a step."""
    config = sweep.config_of(outcome.setting)
    seeds = sweep.choice.seeds
    folders = [
        config.folder / run.name
        for run in sweep.runs
        if run.settings == outcome.setting and run.seed in seeds and math.isfinite(run.loss)
    ]
    records = [load_run(folder) for folder in folders]
    if not records:
        return None, math.nan
    seconds = median(row.seconds for record in records for row in record.metrics.rows)
    return point_of(folders[0], records[0], config, counts.of(config)), seconds


def _reading(watch: LawWatch, base: LawWatch, outcome: Outcome, worth: Worth | None) -> LawReading:
    loss = watch.loss_at_end()
    above = None if outcome.num_diverged else outcome.mean - loss
    return LawReading(loss, above, loss - base.loss_at_end(), worth)


def _worth(base: LawWatch, loss: float, difference: Difference | None) -> Worth | None:
    """Of a loss and its interval, relative to the baseline's `loss`, as laws err by ratios."""
    if difference is None:
        return None

    def factor(change: float) -> float | None:
        return base.compute_factor((loss + change) / loss)

    mean, margin = difference.mean, difference.margin
    if margin is None:
        return Worth(factor(mean), None, None)
    return Worth(factor(mean), factor(mean + margin), factor(mean - margin))
