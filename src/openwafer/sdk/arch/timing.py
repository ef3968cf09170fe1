"""Every parameter of time of the machine, and where each comes from.

What takes how long follows from these alone: the compiler's estimate of scalar code, native code,
the interpreter and the simulator read them from here. docs/design/timing.md shows what they give.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Timing:
    """A generation's time, in cycles where nothing else is said.

    Attributes:
        hop_cycles: from landing at one router to landing at the next.
        ramp_cycles: from a core to the landing at its router.
        place_known_cycles: from that landing until the core may use the place in the output queue.
        arrival_cycles: from the landing at a router to what its core does with the wavelet.
        load_latency: from a load, of memory or of a DSR, to the use of what was loaded.
        float_latency: from a float operation to one that needs its result.
        branch_cycles: of a branch that is not taken, and of one that is.
        loop_cycles: of a loop's iteration with its comparison and step.
        call_cycles: of a call, without its arguments.
        divide_cycles: of a 32-bit float division.
        quotient_bit_cycles: of an integer division by what is not known, for each bit.
        function_cycles: of a function of the numbers that is a routine.
        task_cycles: from what starts a task of an idle core to its first instruction.
        switch_cycles: from the end of the task before to that, at least.
        wavelet_switch_cycles: the same for a task that a wavelet starts, behind one that began no
            vector operation.
        command_cycles: how much later than a task a further command of the host begins.
        request_cycles: of an instruction that is neither computed nor a vector operation.
        beat_cycles: from the issue of a vector operation to its first beat. What follows is issued
            meanwhile, in order.
        drain_cycles: from the end of a vector operation's issue to that of an instruction which
            needs what it wrote, or looks at the clock.
        row_words: words that one read of memory takes; rows of equal parity take turns.
        stride_widths: elements a cycle by the stride modulo 8, a hexadecimal digit each, the lowest
            for 0; 0 where elements between are read in vain until each cycle brings one.
    """

    hop_cycles: int
    ramp_cycles: int
    place_known_cycles: int
    arrival_cycles: int
    load_latency: int
    float_latency: int
    branch_cycles: tuple[int, int]
    loop_cycles: int
    call_cycles: int
    divide_cycles: int
    quotient_bit_cycles: int
    function_cycles: int
    task_cycles: int
    switch_cycles: int
    wavelet_switch_cycles: int
    command_cycles: int
    request_cycles: int
    beat_cycles: int
    drain_cycles: int
    row_words: int
    stride_widths: int


WSE2_TIMING: Final = Timing(
    hop_cycles=1,
    ramp_cycles=2,
    place_known_cycles=3,
    arrival_cycles=3,
    load_latency=4,
    float_latency=2,
    branch_cycles=(3, 6),
    loop_cycles=6,
    call_cycles=12,
    divide_cycles=50,
    quotient_bit_cycles=3,
    function_cycles=100,
    task_cycles=3,
    switch_cycles=9,
    wavelet_switch_cycles=0,
    command_cycles=165,
    request_cycles=1,
    beat_cycles=5,
    drain_cycles=3,
    row_words=4,
    stride_widths=0x28828821,
)
WSE3_TIMING: Final = replace(
    WSE2_TIMING,
    hop_cycles=2,
    loop_cycles=9,
    switch_cycles=12,
    wavelet_switch_cycles=5,
    drain_cycles=6,
    stride_widths=0,
)


class Source(StrEnum):
    """What a figure rests on."""

    DOC = "doc"
    SIM = "sim"
    CHOICE = "choice"


@dataclass(frozen=True)
class Origin:
    """Where a parameter comes from.

    Attributes:
        source: the vendor's documentation, figures of its simulator that others published, or us.
        reason: in words.
        fitted: names of rows of the table of cycles that it was chosen by, with the generation
            behind a comma where it is one of both; such a row confirms nothing.
    """

    source: Source
    reason: str
    fitted: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClockError:
    """How far cycles are off published ones, of rows that nothing was fitted to.

    Attributes:
        num_rows: of the table in docs/design/timing.md.
        median: relative.
        most_of_nine_tenths: relative, of the 90% that are closest.
    """

    num_rows: int
    median: float
    most_of_nine_tenths: float


CLOCK_ERRORS: Final[Mapping[str, ClockError]] = MappingProxyType(
    {"wse2": ClockError(55, 0.069, 0.407), "wse3": ClockError(50, 0.059, 0.370)}
)
"""By generation."""

_SIM, _DOC, _CHOICE = Source.SIM, Source.DOC, Source.CHOICE
ORIGINS: Final[Mapping[str, Origin]] = MappingProxyType(
    {
        "hop_cycles": Origin(_SIM, "thousands of landings in published logs", ("hop",)),
        "ramp_cycles": Origin(_SIM, "published models of collectives", ("chain sum, a PE",)),
        "place_known_cycles": Origin(
            _SIM,
            "queues of depth 2 and 6",
            ("196 words from output queue 2", "196 words from output queue 4"),
        ),
        "arrival_cycles": Origin(_SIM, "from arrival to execution 3"),
        "load_latency": Origin(_SIM, "register load to use 4", ("load, load, add, store",)),
        "float_latency": Origin(
            _SIM, "dependent operations 2 apart", ("dependent f32 operation", "reduction f32")
        ),
        "branch_cycles": Origin(
            _SIM,
            "3 not taken, 6 taken",
            ("branch not taken, a store", "branch taken"),
        ),
        "loop_cycles": Origin(
            _SIM,
            "back edge 9 to 10 of WSE-3; six operations and the loop of WSE-2 in 12",
            ("empty loop, an iteration", "one-cell stencil, 3 x 3, a step, wse2"),
        ),
        "call_cycles": Origin(_CHOICE, "jump, link and register move in, jump out"),
        "divide_cycles": Origin(_SIM, "about 50", ("f32 divide",)),
        "quotient_bit_cycles": Origin(_CHOICE, "a routine with a step for each bit"),
        "function_cycles": Origin(_CHOICE, "a polynomial of about twenty dependent steps"),
        "task_cycles": Origin(
            _SIM,
            "what a PE adds to a chain",
            (
                *(f"chain of tasks, PE {x}" for x in range(1, 6)),
                *(f"store and forward of {n} words, a hop" for n in (10, 50)),
            ),
        ),
        "switch_cycles": Origin(
            _SIM,
            "a loop of tasks on the device; of WSE-2 a public program's data task of 36 cycles",
            ("power-method on the device, 10 steps, own clock",),
        ),
        "wavelet_switch_cycles": Origin(
            _SIM,
            "what further wavelets cost the slowest PE of a tiled stencil",
            tuple(
                f"tiled stencil, {n} x {n} PEs, {which}"
                for n in (32, 16)
                for which in ("fastest", "slowest")
            ),
        ),
        "command_cycles": Origin(
            _SIM,
            "what two published programs leave over",
            (
                *("7pt-stencil-spmv, own clock", "7pt-stencil-spmv, 60 layers, own clock"),
                *("7pt-stencil-spmv, one block, own clock", "power-method, own clock"),
            ),
        ),
        "request_cycles": Origin(_CHOICE, "one instruction"),
        "beat_cycles": Origin(
            _SIM,
            "dispatch to first wavelet 7, with the ramp",
            ("store and forward of 10 words, a hop", "store and forward of 50 words, a hop"),
        ),
        "drain_cycles": Origin(
            _SIM,
            "what constants of operations leave beside loads of registers and the clock",
            (
                *("copy f16", "scale f16", "add f16", "triad f16", "copy f32", "scale f32"),
                *("triad f32", "mul f32, registers loaded, aligned", "fma f16, bank conflict"),
                *("fma f32, bank conflict", "fill 16-bit"),
            ),
        ),
        "row_words": Origin(_DOC, "two reads of 64 bits in a cycle"),
        "stride_widths": Origin(
            _DOC, "the table of strides; of WSE-3 a row", ("read 16-bit, stride 4",)
        ),
    }
)
"""By name of the parameter."""

RULES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "addresses first": ("loop of SAXPY", "loop of prefix sums", "loop of a dot product"),
        "selects": ("loop of a maximum",),
        "clock's control": ("first look at the clock",),
        "turns of reads": tuple(
            f"tiled stencil, {n} x {n} PEs, fastest" for n in (32, 28, 24, 20, 16, 12, 8, 4)
        ),
        "switch behind vectors": tuple(
            f"ring product {sizes}"
            for sizes in (
                *("2 x 2 x 8 x 8 x 8", "2 x 4 x 8 x 8 x 8", "2 x 2 x 16 x 16 x 16"),
                *("2 x 4 x 16 x 8 x 16", "2 x 2 x 2 x 2 x 2", "2 x 4 x 4 x 4 x 16"),
                *("2 x 2 x 4 x 2 x 16", "2 x 2 x 4 x 16 x 2", "4 x 2 x 4 x 4 x 4"),
                "4 x 2 x 8 x 8 x 8",
            )
        ),
        "low words": ("halo stencil 1r-star2d, radius 1",),
        "one division": ("halo stencil box2d, radius 3",),
        "loops written out": (
            *("halo stencil 1r-star2d, radius 1", "halo stencil star2d, radius 2"),
            "halo stencil star2d, radius 3",
        ),
        "bases of registers": ("product of 16 x 16 by 32", "product of 64 x 64 by 32"),
        "turns of threads": tuple(
            f"tile of {n} x {n} cells, radius 1, a step, wse3" for n in (4, 5, 6, 8, 10, 20)
        ),
        "rows updated in place": tuple(
            f"tile of {n} x {n} cells, radius 1, a step, wse2" for n in (8, 10, 20)
        ),
        "tasks that wait": tuple(
            f"tile of {n} x {n} cells, radius 1, a step, {arch}"
            for n in (1, 2, 3)
            for arch in ("wse2", "wse3")
        ),
        "chosen meanwhile": ("tile of 1 x 1 cells, radius 1, a step, wse2",),
        "numbers of @map": (
            "single-tile-matvec, own clock",
            "@map over 25 numbers, columns of 28 f32",
        ),
        "launch": (
            *(f"broadcast along {n} PEs" for n in (4, 8, 16, 32)),
            *(f"broadcast to {n} x {n} PEs" for n in (4, 8, 16)),
        ),
    }
)
"""Rules without a parameter, and the rows that they were found by, which confirm them as little."""
