"""What the largest waits of a profile mean, and what helps against each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from openwafer.sdk.profile import tables
from openwafer.sdk.profile.model import Profile

LEAST_SHARE: Final = 0.05
"""Of the main threads' cycles; what takes less is not spoken of."""

_HELP: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nothing": "no task can run: look at microthreads, and at the PEs that send to these",
        "scalar": "code runs an instruction a cycle: let operations on descriptors do what loops"
        " do, and load descriptors into registers before a loop",
        "pause": "beats have gaps: neighbours in memory instead of strides, and no sum into a"
        " scalar, whose elements wait for each other",
        "turn": "reads of two arrays take turns: begin them in banks that differ modulo 4"
        " (cslc --emit memory shows banks)",
        "drain": "code waits for results: put other work between an operation and what reads it",
        "switch": "tasks begin often: do more in each",
        "request": "an operation waits for its microthread: give those that overlap others",
        "blocked task": "a task that could run is blocked: look for its @unblock",
        "blocked thread": "a microthread is blocked: look for its @unblock",
        "lost beat": "another thread has the datapath, where this one could go on",
        "fifo": "a FIFO is empty or full: make it longer, or look at its other side",
        "input": "wavelets are late: look at what the PEs wait for that send on the color",
        "output": "the queue is full: look at who takes the color's wavelets, or use a longer one",
    }
)


@dataclass(frozen=True)
class Advice:
    """A state that takes much of the main threads' time, and what helps against it.

    Attributes:
        state: with the colors that are waited for.
        share: of the main threads' cycles.
    """

    state: str
    share: float
    text: str


def advice(profile: Profile) -> Iterator[Advice]:
    """For the states with most cycles of main threads; beats are what is wanted."""
    for one in tables.by_state(profile):
        share = one.main / max(1, profile.pe_cycles)
        kind = one.state.rstrip("0123456789 ")
        if share >= LEAST_SHARE and kind != "beat":
            colors = ", ".join(map(str, one.colors))
            state = f"{one.state} (color {colors})" if colors else one.state
            yield Advice(state, share, _HELP[kind])
