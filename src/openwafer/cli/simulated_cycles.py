"""Cycles of a run on the simulated wafer, as plans for a wafer take them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from openwafer.diagnostics import error
from openwafer.figures import Figure, Origin
from openwafer.planning.systems import SimulatedCycles, System
from openwafer.sdk.arch.timing import CLOCK_ERRORS
from openwafer.training.metrics.fabric_report import PASSES, FabricReport, LayerPass
from openwafer.training.metrics.run_record import FABRIC_REPORT

_FORWARD, _DELTA, _GRADIENT = PASSES
_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name: f"products, {name}" for name in PASSES},
        **dict.fromkeys(("attention", "attention_delta"), "attention"),
        **dict.fromkeys(("norm", "norm_delta", "give"), "norms"),
        "cross_entropy": "loss",
    }
)
"""Kinds of layers by the names of their passes; others are functions of each activation."""
_LOCAL: Final = "functions of activations"


def with_cycles(system: System, run: Path) -> System:
    """A wafer whose streamed passes take the cycles of a run.

    Args:
        system: the wafer.
        run: folder of the run.

    Raises:
        OpenwaferError: ``plan-cycles``, the system is no wafer, or the run had none.
    """
    if system.fabric is None:
        raise error(
            "plan-cycles",
            f"{run} is to give the cycles of a wafer, and {system.title} is none",
            help="plan for a wafer, as with --system cs2, or describe one's fabric in a file",
        )
    report = FABRIC_REPORT.read_if_present(run)
    if report is None:
        raise error(
            "plan-cycles",
            f"{run} has no {FABRIC_REPORT.file_name}, as a run on the simulated wafer has",
            help="give the folder of a run with streaming: {device: fabric}",
        )
    return replace(system, simulated=_cycles(report, run))


def _cycles(report: FabricReport, run: Path) -> SimulatedCycles:
    walks: dict[str, list[LayerPass]] = {name: [] for name in PASSES}
    for one in report.passes:
        walks[_walk_of(one.name)].append(one)
    forward, delta, gradient = (_walk(name, walks[name], report, run) for name in PASSES)
    told = (*_by_kind(report, run), *_clock_error(report.generation))
    return SimulatedCycles(forward, delta, gradient, told)


def _walk_of(name: str) -> str:
    """Which of the three passes over all layers a pass is a part of."""
    if name in (_GRADIENT, "give"):
        return _GRADIENT
    return _DELTA if name == _DELTA or name.endswith("_delta") else _FORWARD


def _walk(name: str, passes: Iterable[LayerPass], report: FabricReport, run: Path) -> Figure:
    own = list(passes)
    products = sum(one.multiply_adds for one in own)
    if not products:
        raise error(
            "plan-cycles",
            f"{run} has no products of the pass {name!r} on the wafer",
            help="give a run that trains on the wafer layers with weights, two of them at least",
        )
    size = report.rows * report.columns
    value = size * sum(one.cycles for one in own) / products
    source = (
        f"{run}, {report.rows} x {report.columns} PEs of {report.generation}, with what other "
        "layers take in that pass"
    )
    return Figure(f"{name}, a multiply-add", value, "core cycles", Origin.SIMULATED, source)


def _by_kind(report: FabricReport, run: Path) -> Iterator[Figure]:
    cycles: dict[str, int] = {}
    predicted: dict[str, int] = {}
    for one in report.passes:
        kind = _KINDS.get(one.name, _LOCAL)
        cycles[kind] = cycles.get(kind, 0) + one.cycles
        predicted[kind] = predicted.get(kind, 0) + one.predicted_cycles
    for kind, value in cycles.items():
        share = f"{value / report.cycles:.1%} of {run}"
        if predicted[kind]:
            share += f"; its plan had said {predicted[kind]:,}"
        yield Figure(kind, value, "cycles", Origin.SIMULATED, share)


def _clock_error(generation: str) -> Iterator[Figure]:
    found = CLOCK_ERRORS[generation]
    source = f"{found.num_rows} published rows of {generation} that nothing was fitted to"
    for name, value in (
        ("clock off by, median", found.median),
        ("clock off by, 90% of rows", found.most_of_nine_tenths),
    ):
        yield Figure(name, value, "", Origin.SIMULATED, source)
