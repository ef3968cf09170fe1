"""Tables of figures, and a console for them."""

from rich.console import Console

from openwafer.planning.figures import Figure

PLAIN_WIDTH = 140


def plain_console() -> Console:
    """Standard output; of a fixed width where it has none, as a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(file=console.file, width=PLAIN_WIDTH)


def value_of(figure: Figure) -> str:
    """A figure's number with three digits, and its unit."""
    return f"{float(f'{figure.value:.3g}'):,.10g} {figure.unit}".strip()
