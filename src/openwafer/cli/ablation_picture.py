"""Differences of variants from their baseline, with their noise, costs and a law's expectation."""

from pathlib import Path
from typing import Any, Final

from openwafer.cli.ablation_record import AblationRecord, Result
from openwafer.cli.pictures import BLUE, INK, RED, picture

WIDTH_INCHES, ROW_INCHES, MARGIN_INCHES = 8.0, 0.36, 1.5
GREY, FAINT = "#9aa4b0", "#e4e7eb"
MAX_NAME_CHARS: Final = 44


def draw_ablation(path: Path, record: AblationRecord) -> None:
    """Replace the picture `path`, .png or .svg by its name. Raises OSError."""
    variants = record.results[1:]
    height = MARGIN_INCHES + ROW_INCHES * len(variants)
    base = record.results[0]
    of = f" of {base.loss:.4f}" if base.cost is not None else ""
    seeds = len(record.seeds)
    noise = f"bars: 95% over {seeds} seeds; hollow: not told from 0"
    noise = noise if seeds > 1 else "one seed: the noise is not known"
    with picture(path, (WIDTH_INCHES, height)) as axes:
        draw_rows(axes, variants)
        label = f"held-out loss minus the baseline's{of}, nats a token\n{noise}"
        axes.set_xlabel(label, fontsize=9)


def draw_rows(axes: Any, variants: tuple[Result, ...]) -> None:
    """A row for each variant, the first at the top; its FLOPs, as a ratio, at the right.

    A difference that its noise does not tell from 0 is hollow; one that is not there is a cross.
    """
    axes.axvline(0, color=GREY, lw=1, zorder=0)
    beside = axes.get_yaxis_transform()
    has_law = False
    for row, variant in enumerate(variants):
        difference = variant.difference
        axes.axhline(row, color=FAINT, lw=0.7, zorder=0)
        if difference is None:
            axes.plot([0.985], [row], "x", color=RED, transform=beside)
        else:
            face = "white" if difference.is_told_apart is False else BLUE
            axes.errorbar(
                [difference.mean],
                [row],
                xerr=difference.margin,
                fmt="o",
                color=BLUE,
                mfc=face,
                ms=6,
                capsize=3,
            )
        if variant.law is not None and difference is not None:
            label = None if has_law else "the law, for size and compute alone"
            axes.plot([variant.law.difference], [row], "|", color=RED, ms=13, mew=2, label=label)
            has_law = True
        ratio = variant.cost and variant.cost.flops_ratio
        told = "diverged" if difference is None else f"{ratio:.2f}x" if ratio else ""
        axes.text(1.015, row, told, transform=beside, va="center", fontsize=9, color=INK)
    axes.text(1.015, -0.75, "FLOPs", transform=beside, va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(variants)), labels=[_short(variant.name) for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if has_law:
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.02))


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 3]}..."
