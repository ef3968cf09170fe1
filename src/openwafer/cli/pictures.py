"""Pictures by matplotlib, which is loaded when one is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from openwafer.atomic_file import replacing

BLUE, RED, INK = "#1f5fa8", "#cf5b3f", "#1f2328"


@contextmanager
def picture(
    file: Path | BinaryIO, size: tuple[float, float], *, dpi: int = 130, **grid: Any
) -> Iterator[Any]:
    """Context that gives axes of `size` inches, or a grid of them, and then writes the picture.

    A path is replaced, by a .png or .svg as it is named; a stream gets an SVG. The same picture
    gives the same bytes. Raises OSError.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    canvas = Figure(figsize=size, layout="constrained")
    yield canvas.subplots(**grid)
    form = (file.suffix[1:] or "png") if isinstance(file, Path) else "svg"
    output = replacing(file) if isinstance(file, Path) else nullcontext(file)
    with rc_context({"svg.hashsalt": "openwafer"}), output as written:
        metadata = {"Date": None} if form == "svg" else None
        canvas.savefig(written, dpi=dpi, format=form, metadata=metadata)
