"""Tables of figures, and a console for them."""

import math
from typing import Final

from rich.console import Console

from openwafer.figures import Figure

PLAIN_WIDTH = 140
PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SMALL_PREFIXES: Final = ("", "m", "u", "n")
PREFIXED: Final = ("B", "B/s", "FLOP", "FLOP/s", "Hz", "W", "Wh")
MOST_EXACT: Final = 1e7
SECONDS_PER_DAY: Final = 24 * 60 * 60


def plain_console() -> Console:
    """Standard output; of a fixed width where it has none, as a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(file=console.file, width=PLAIN_WIDTH)


def value_of(figure: Figure) -> str:
    """A figure's number with four digits, or all of a small whole one, and its unit."""
    value, unit = figure.value, figure.unit
    if unit == "s" and value >= SECONDS_PER_DAY:
        return f"{_digits(value / SECONDS_PER_DAY)} d"
    power = math.floor(math.log10(value) / 3) if value > 0 else 0
    if unit in PREFIXED and power > 0:
        power = min(power, len(PREFIXES) - 1)
        return f"{_digits(value / 1000**power)} {PREFIXES[power]}{unit}"
    if unit == "s" and power < 0:
        power = max(power, 1 - len(SMALL_PREFIXES))
        return f"{_digits(value / 1000.0**power)} {SMALL_PREFIXES[-power]}s"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    if value == math.floor(value) and value < MOST_EXACT:
        return f"{value:,.0f}"
    return f"{float(f'{value:.4g}'):,.10g}"
