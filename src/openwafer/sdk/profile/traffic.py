"""What passed over links and ramps in a recorded run."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.host import Record
from openwafer.sdk.profile.model import ColorLoad, LinkLoad, MapLayer, Profile, Traffic
from openwafer.sdk.profile.taking import cells_of

LINKS: Final = (
    "from west",
    "from east",
    "from south",
    "from north",
    "from the core",
    "to the core",
)
"""The ways into a router, and that from it into its core; one wavelet a cycle each."""
_RAMP: Final = 4
_TO_CORE: Final = 5
_BUSIEST: Final = "wavelets of the busiest link"


def with_traffic(profile: Profile, record: Record) -> Profile:
    """The profile with what passed over the fabric in the same run.

    Raises OpenwaferError where the record is damaged, of a part of the run, or of another program.
    """
    if record.head.program != profile.program or not record.head.scope.is_whole:
        raise error(
            "record-of-other-run",
            f"{record.path} is no record of all that the program {profile.program[:12]} did",
            help="record the run that is profiled, all of its PEs, cycles and colors",
        )
    counts = _counts(profile, record)
    layer = MapLayer(_BUSIEST, cells_of(counts.max(axis=0), profile.fabric_map.pes))
    cells = replace(profile.fabric_map, layers=(*profile.fabric_map.layers, layer))
    traffic = Traffic(tuple(_links(counts)), tuple(_colors(record)))
    return replace(profile, fabric_map=cells, traffic=traffic)


def _counts(profile: Profile, record: Record) -> NDArray[np.int64]:
    """Wavelets of each link, shape (links, rows, columns)."""
    landings, entered = record.events(EventKind.LANDING), record.events(EventKind.ENTERED)
    entered = entered.take(entered.link == _RAMP)
    counts = np.zeros((len(LINKS), profile.height, profile.width), np.int64)
    np.add.at(counts, (landings.link, landings.y, landings.x), 1)
    np.add.at(counts[_TO_CORE], (entered.y, entered.x), 1)
    return counts


def _links(counts: NDArray[np.int64]) -> Iterator[LinkLoad]:
    for name, own in zip(LINKS, counts, strict=True):
        if own.any():
            y, x = np.unravel_index(own.argmax(), own.shape)
            yield LinkLoad(name, int(own.sum()), int(own.max()), int(x), int(y))


def _colors(record: Record) -> Iterator[ColorLoad]:
    landings = record.events(EventKind.LANDING)
    for color in np.unique(landings.color):
        own = landings.link[landings.color == color]
        sent = int(np.count_nonzero(own == _RAMP))
        yield ColorLoad(int(color), sent, len(own) - sent)
