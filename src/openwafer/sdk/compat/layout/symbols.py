"""Initial values of symbols that a layout spreads over a region."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.compat.layout.region import CodeRegion, Place
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.program import Program


def with_symbols(program: Program, regions: Sequence[CodeRegion]) -> Program:
    """Return the program with the regions' symbols in the memory of its PEs.

    Raises OpenwaferError when a PE has no such symbol, or one of another size.
    """
    images = list(program.images)
    image_of = program.image_of.copy()
    for region in (region for region in regions if region.symbols):
        for place in region.params:
            x, y = region.origin[0] + place[0], region.origin[1] + place[1]
            images.append(_filled(program.images[int(image_of[y, x])], region, place))
            image_of[y, x] = len(images) - 1
    return replace(program, images=tuple(images), image_of=image_of)


def _filled(image: Image, region: CodeRegion, place: Place) -> Image:
    data = bytearray(image.data)
    for name in region.symbols:
        symbol = next((symbol for symbol in image.symbols if symbol.name == name), None)
        content = np.ascontiguousarray(region.part_of_symbol(name, place)).tobytes()
        size = 0 if symbol is None else symbol.num_bytes
        if symbol is None or size != len(content):
            raise error(
                "layout-symbol",
                f"region {region.name} gives {len(content)} bytes for {name}, "
                f"{image.name} has {size}",
            )
        start = symbol.address * WORD_BYTES
        data.extend(bytes(max(0, start + size - len(data))))
        data[start : start + size] = content
    return replace(image, data=bytes(data))
