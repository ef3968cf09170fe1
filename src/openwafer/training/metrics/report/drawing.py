"""Figures as inline SVG that follows the page: its fonts, its colors, its width, its dark mode.

Each figure is painted twice, for a wide page and for a phone, because a scaled drawing has
scaled letters; the style sheet shows one of the two. Colors are replaced by CSS variables.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from openwafer.training.metrics.units import format_bytes, format_count

_POINTS_PER_INCH = 72


class Color(StrEnum):
    """The palette in light mode; page.css holds the same names for light and dark."""

    INK = "#1f2328"
    MUTED = "#68707a"
    GRID = "#e3e5e8"
    ACCENT = "#1f5fa8"
    FAINT = "#a9c4e4"
    LIMIT = "#b3372c"
    PLAN = "#8a6d1d"
    FORWARD = "#2a9d8f"
    BACKWARD = "#2b5c9e"
    RECOMPUTE = "#9bb54a"
    FETCH = "#e39a2d"
    PUSH = "#cf5b3f"
    UPDATE = "#8d5fa8"
    READ = "#93a9ba"
    WRITE = "#5d7080"

    @property
    def variable(self) -> str:
        return f"var(--{self.name.lower()})"


class Mark(StrEnum):
    """A legend shows its entry as a filled area, a line, a dashed line or a dot."""

    BLOCK = "block"
    LINE = "line"
    DASHES = "dashes"
    DOT = "dot"


@dataclass(frozen=True)
class Key:
    """One entry of a figure's legend."""

    label: str
    color: Color
    mark: Mark = Mark.BLOCK


@dataclass(frozen=True)
class Words:
    """The text around a picture: title, caption and legend."""

    title: str
    caption: str
    legend: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Size:
    """A drawing's size in CSS pixels."""

    width: int
    height: int

    @property
    def is_narrow(self) -> bool:
        return self.width < 600


@dataclass(frozen=True)
class Figure:
    """A picture for a wide page and for a phone, with its words."""

    name: str
    words: Words
    wide_svg: str
    narrow_svg: str


Paint = Callable[[Any, Size], None]


def draw_figure(
    name: str, words: Words, paint: Paint, *, height: int, narrow_height: int | None = None
) -> Figure:
    """Call `paint(canvas, size)` on a matplotlib figure of each size, in CSS pixels."""
    wide, narrow = Size(920, height), Size(360, narrow_height or height)
    return Figure(name, words, _draw(name, paint, wide), _draw(name, paint, narrow))


def bar_axes(canvas: Any, names: Sequence[str]) -> Any:
    """Axes for horizontal bars, one a name, the first on top."""
    axes = canvas.subplots()
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return axes


def _draw(name: str, paint: Paint, size: Size) -> str:
    with mpl.rc_context(_style()):
        inches = size.width / _POINTS_PER_INCH, size.height / _POINTS_PER_INCH
        canvas = Canvas(figsize=inches, dpi=_POINTS_PER_INCH, layout="constrained")
        paint(canvas, size)
        written = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(written, metadata={"Date": None, "Creator": None})
    return _embed(written.getvalue(), f"{name}-{size.width}", size)


def _style() -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "openwafer",
        "text.parse_math": False,
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "axes.edgecolor": Color.GRID.value,
        "axes.labelcolor": Color.MUTED.value,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.xmargin": 0.01,
        "grid.color": Color.GRID.value,
        "grid.linewidth": 1,
        "text.color": Color.INK.value,
        "xtick.color": Color.MUTED.value,
        "ytick.color": Color.MUTED.value,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
    }


def _embed(svg: str, prefix: str, size: Size) -> str:
    body = svg[svg.index("<defs") : svg.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"(/?)>', r"<g\1>", body)
    # Two drawings on a page may not share ids: a clip path inside a hidden one clips to nothing.
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
    for color in Color:
        body = body.replace(color.value, color.variable)
    frame = f'viewBox="0 0 {size.width} {size.height}" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {frame} aria-hidden="true">{body}</svg>'


def render(template: str, **values: object) -> str:
    """The text of a template with these values."""
    return _TEMPLATES.get_template(template).render(values)


def _prose(text: str) -> str:
    """Text in which no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[KMGTP]?i?B\b|[mµ]?s\b|min\b)", "\u00a0", text)


_TEMPLATES = Environment(
    loader=PackageLoader("openwafer.training.metrics.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(prose=_prose, bytes=format_bytes, count=format_count)


Series = npt.NDArray[np.float64]

_MOST_POINTS = 1200


def finite_points(points: Iterable[tuple[float, float]]) -> tuple[Series, Series]:
    """The x and y of all points whose y is a finite number."""
    table = np.array(list(points), dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table[:, 1])]
    return table[:, 0], table[:, 1]


def moving_mean(values: Series, window: int) -> Series:
    """The mean of the `window` values around each one, of fewer at both ends."""
    kernel = np.ones(window)
    counts = np.convolve(np.ones_like(values), kernel, mode="same")
    return np.asarray(np.convolve(values, kernel, mode="same") / counts, dtype=np.float64)


def thin(x: Series, y: Series) -> tuple[Series, Series]:
    """At most 1200 points, the lowest and the highest of each bucket, so that no peak is lost."""
    if len(x) <= _MOST_POINTS:
        return x, y
    buckets = np.array_split(np.arange(len(x)), _MOST_POINTS // 2)
    ends = [(bucket[y[bucket].argmin()], bucket[y[bucket].argmax()]) for bucket in buckets]
    kept = np.unique(np.array(ends))
    return x[kept], y[kept]
