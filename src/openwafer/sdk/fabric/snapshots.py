"""A machine's state between two cycles, kept and brought back.

What is kept is what the compiled core reads again: some 100 kB a PE. It belongs to the machine that
it was taken of, since rows hold native addresses of its array. Code of PEs that waits in its middle
is part of it only where the code keeps its variables in the PE's memory, as native code does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables


@dataclass(frozen=True)
class Snapshot:
    """Copies of regions: of each band its own, then those that all share, by name.

    `machine` names the machine that it was taken of, as no other one is named.
    """

    machine: str
    own: tuple[Mapping[str, Array], ...]
    shared: Mapping[str, Array]


def taken(machine: str, states: Sequence[Array]) -> Snapshot:
    """Copy what a machine is between two cycles; what bands have recorded was taken before."""
    shared = {name: region.copy() for name, region in _shared_regions(states[0])}
    return Snapshot(
        machine,
        tuple({name: region.copy() for name, region in _own_regions(state)} for state in states),
        shared,
    )


def put_back(machine: str, states: Sequence[Array], snapshot: Snapshot) -> None:
    """Make a machine what it was. Raises OpenwaferError for a snapshot of another machine."""
    if snapshot.machine != machine:
        raise error(
            "snapshot-of-other-machine",
            f"the snapshot was taken of {snapshot.machine}, and this is {machine}",
            help="restore a snapshot into the machine that it was taken of",
        )
    for state, own in zip(states, snapshot.own, strict=True):
        for name, region in _own_regions(state):
            region[...] = own[name]
    for name, region in _shared_regions(states[0]):
        region[...] = snapshot.shared[name]


def _own_regions(state: Array) -> Iterator[tuple[str, Array]]:
    """What a band has of its own but for addresses, and lists as long as the scalars say."""
    yield "scalars of all", state[: w.G_BAND_ADDRESSES]
    yield "scalars", state[w.G_ADDRESS + 1 : w.GLOBAL_WORDS]
    yield "wheel_list", state[w.WHEEL_LIST :][: w.WHEEL]
    yield "router_list", state[w.ROUTER_LIST :][: state[w.G_ROUTERS]]
    yield "core_list", state[w.CORE_LIST :][: state[w.G_CORES]]
    for side in range(2):
        yield f"calls {side}", state[w.CALLS + side * w.MAX_CALLS :][: state[w.G_CALLS + side]]
    yield "seen", state[w.SEEN :][: state[w.G_SEEN] * w.SEEN_WORDS]


def _shared_regions(state: Array) -> Iterator[tuple[str, Array]]:
    """What changes of the regions that bands share."""
    tables = Tables(state)
    for name, region in w.SHARED.items():
        if region.shape.is_by_pe:
            yield name, tables.view(name)
    yield "filter", tables.filter[: state[w.G_FILTERS]]
    yield "image", tables.image[: tables.processor[:, w.P_IMAGE].max() + 1]
    sources = tables.source[: state[w.G_SOURCE_ROWS]]
    yield "source", sources
    yield "source_data", state[w.SOURCE_DATA :][: np.max(sources[:, w.S_END], initial=0)]
