"""A whole program: images on a rectangle of PEs, routes, and what the host knows of it."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program.debug_info import DebugInfo, FrameTable, Place
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.routing import ColorConfig


@dataclass(frozen=True)
class HostName:
    """A name of ``@export_name``: a variable or pointer, or a function when `inputs` is not None.

    Attributes:
        type: as CSL writes it, for instance ``[*]f32``; a function's return type.
        inputs: name and type of each parameter.
    """

    id: int
    name: str
    type: str
    is_mutable: bool = False
    inputs: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class Program:
    """See the module.

    Attributes:
        fabric: columns and rows of the whole fabric.
        offset: column and row of the rectangle's north-west PE.
        images: the distinct images.
        image_of: shape (rows, columns) of the rectangle: number of each PE's image.
        parameters: shape (rows, columns, n), int64: raw bits of each PE's own parameter values.
        routes: the distinct sets of color configurations, color to configuration.
        routes_of: shape (rows, columns): number of each PE's set.
        streams: color of each streaming name of the host (``MEMCPYH2D_1`` ...).
        params: values of the compile command, as text.
        colors: values of the compile command, as text.
        channels: memcpy channels; 0 without memcpy.
        warnings: rendered diagnostics of the compiler.
        printed: lines of `@comptime_print`.
        places: of the source, which instructions, requests and traps name by their number.
        debug: what else the source says.
    """

    arch: Arch
    fabric: tuple[int, int]
    offset: tuple[int, int]
    images: tuple[Image, ...] = field(repr=False)
    image_of: NDArray[np.int32] = field(repr=False)
    parameters: NDArray[np.int64] = field(repr=False)
    routes: tuple[tuple[tuple[int, ColorConfig], ...], ...] = field(repr=False)
    routes_of: NDArray[np.int32] = field(repr=False)
    host_names: tuple[HostName, ...] = field(default=(), repr=False)
    streams: tuple[tuple[str, int], ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    colors: tuple[tuple[str, str], ...] = ()
    channels: int = 0
    warnings: tuple[str, ...] = field(default=(), repr=False)
    printed: tuple[str, ...] = field(default=(), repr=False)
    places: tuple[Place, ...] = field(default=(), repr=False)
    debug: DebugInfo = field(default=DebugInfo(), repr=False)

    @property
    def width(self) -> int:
        """Columns of the rectangle."""
        return int(self.image_of.shape[1])

    @property
    def height(self) -> int:
        """Rows of the rectangle."""
        return int(self.image_of.shape[0])

    def number_of(self, x: int, y: int) -> int:
        """Number of a PE: column after column, as launches go and neighbours work alike."""
        return x * self.height + y

    def place_of(self, number: int) -> tuple[int, int]:
        """Column and row of a numbered PE."""
        return divmod(number, self.height)

    def pe_name(self, number: int) -> str:
        """What reports call a numbered PE."""
        x, y = self.place_of(number)
        return f"PE ({x}, {y})"

    def written_place(self, number: int) -> Hashable:
        """What is equal for one place of the source in all expansions of a function."""
        return self.places[number].written if 0 <= number < len(self.places) else number

    def text_of_place(self, number: int) -> str:
        """A place of the source as reports show it; empty where there is none."""
        return str(self.places[number]) if 0 <= number < len(self.places) else ""

    @property
    def images_by_number(self) -> NDArray[np.int32]:
        """Number of each numbered PE's image."""
        return self.image_of.ravel(order="F")

    def label_of(self, image: int) -> str:
        """What an image is called where no other may be called the same."""
        return f"{self.images[image].name} (image {image})"


def with_frames(program: Program, table: FrameTable) -> Program:
    """The program, with what its native code says of its frames."""
    images = tuple(
        replace(image, names=replace(image.names, frames=frames))
        for image, frames in zip(program.images, table.images, strict=True)
    )
    return replace(program, images=images, debug=replace(program.debug, frames=table.frames))
