"""What kernels share: a compiled program for a plan, a run of it, and its cycles."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, MEMORY_WORDS, WORD_BYTES, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.door.compiled import QUIET, Compiled, Param, compile_layout
from openwafer.sdk.door.run import Run
from openwafer.sdk.host import RuntimeOptions
from openwafer.sdk.kernels.operands import check_array
from openwafer.sdk.kernels.precision import Precision, precision_of
from openwafer.sdk.kernels.trees import way_cycles

PROGRAMS: Final = Path(__file__).parent / "programs"
STRICT: Final = CompileOptions(
    is_memcpy=True, are_warnings_errors=True, is_strict=True, max_inlined_iterations=1_000_000
)
MEMORY_BYTES: Final = WORD_BYTES * MEMORY_WORDS
"""Of a PE."""
CODE_BYTES: Final = 6 * 1024
"""Kept for code, stack and what the host's copies need (published: 4,176 bytes)."""
MARGIN: Final = (7, 2)
"""Columns and rows of the fabric that the host's transport takes beside a rectangle."""
ON_PES: Final = ("rows of PEs", "columns of PEs", "elements")
"""Dims of values of each PE."""
LOOK_CYCLES: Final = 3
"""Of a look at the clock, an instruction for each of its words."""
DESCRIPTOR_CYCLES: Final = 5
"""Of the instructions that make a descriptor of an address which is known when they run."""
_MOST_WRITTEN_OUT: Final = 150
"""Instructions of all turns of a loop that the compiler writes out."""
ROWS_APART: Final = 4
"""Elements of 32 bits so far apart, or a multiple, are read in turns: two rows of memory."""
REDUCE_CYCLES: Final = 0
"""Of the instructions of ``<kernels/reduce/pe>`` until a PE sends its own values."""
BROADCAST_CYCLES: Final = DESCRIPTOR_CYCLES
"""Of the instructions of ``<kernels/broadcast/pe>`` until the root sends."""


@dataclass(frozen=True)
class Result:
    """What a kernel gives back.

    Attributes:
        values: the result.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    cycles: int


Option = TypeVar("Option", bound=StrEnum)


def known(what: str, name: str, options: type[Option]) -> Option:
    """One of some options by its name.

    Args:
        what: what is chosen and the verb, as in ``"arch is"``.
        name: the option's.
        options: all that there are, two or more.

    Raises:
        OpenwaferError: there is none of this name.
    """
    names = list(options)
    if name not in names:
        some = " or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}"
        raise error("option-value", f"{what} {name!r}", help=f"give {some}")
    return options(name)


def known_arch(name: str) -> Arch:
    """A generation by its name.

    Raises:
        OpenwaferError: there is none.
    """
    return known("arch is", name, Arch)


def transfer_cycles(num_instructions: int, arch: Arch) -> int:
    """Cycles of a transfer beside its words and their way, which models count.

    They are those of the sender's instructions, of its two registers, until its first beat, and at
    the receiver from the last beat, which is one of the words, to the task that is activated.
    """
    timing = GENERATIONS[arch].timing
    begin = num_instructions + registers_cycles(arch) + timing.beat_cycles
    return begin + timing.task_cycles - 1


def is_written_out(weight: float, num_turns: int) -> bool:
    """Whether the compiler makes no loop of so many turns.

    Args:
        weight: instructions of a turn as the compiler counts them, without those of the counter.
        num_turns: known when it compiles.
    """
    return weight * num_turns <= _MOST_WRITTEN_OUT


def loop_cycles(num_turns: int, arch: Arch) -> int:
    """Cycles of a loop beside what its turns do: its counter, each turn, and the branch out."""
    timing = GENERATIONS[arch].timing
    return 1 + num_turns * timing.loop_cycles + timing.branch_cycles[1]


def registers_cycles(arch: Arch) -> int:
    """Until the two registers of a message's operation are loaded."""
    return load_cycles(2, GENERATIONS[arch].timing.load_latency)


def first_word_cycles(num_hops: int, arch: Arch) -> int:
    """From the instructions that make a message's descriptor to its first word, so far away."""
    return DESCRIPTOR_CYCLES + way_cycles(num_hops, arch)


def check_rectangle(rows: int, columns: int, arch: Arch) -> None:
    """Refuse a rectangle that the fabric has no room for.

    Raises:
        OpenwaferError: it is empty, or too large, or its sides are no integers.
    """
    if any(
        isinstance(one, bool) or not isinstance(one, int | np.integer) for one in (rows, columns)
    ):
        raise error(
            "kernel-rectangle",
            f"rows and columns of PEs are {rows!r} and {columns!r}",
            help="give two integers, as in (4, 4)",
        )
    width, height = (
        have - margin for have, margin in zip(GENERATIONS[arch].max_fabric, MARGIN, strict=True)
    )
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise error(
            "kernel-rectangle",
            f"{rows} rows and {columns} columns of PEs; {arch} has room for 1 to {height} rows "
            f"and 1 to {width} columns",
            help="choose a rectangle inside of the fabric",
        )


def check_dims(name: str, values: NDArray[Any], *dims: str) -> None:
    """Refuse an operand of another number of dims than what they are.

    Raises:
        OpenwaferError: it has another number.
    """
    if values.ndim != len(dims):
        raise error(
            "kernel-shape",
            f"{name} of the shape {values.shape}; {len(dims)} dims ({', '.join(dims)}) are needed",
            help="give an array of these dims, as by reshape",
        )


def check_operand(
    name: str, values: NDArray[Any], shape: tuple[int, ...], precision: Precision
) -> None:
    """Refuse an operand of another type or shape than the plan's.

    Raises:
        OpenwaferError: it has another one.
    """
    precision_of(precision, values.dtype)
    check_shape(name, values, shape)


def check_shape(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse an operand of another shape than the plan's, or with a mask.

    Raises:
        OpenwaferError: it has another one.
    """
    check_array(name, values)
    if values.shape != shape:
        raise error(
            "kernel-shape",
            f"{name} has the shape {values.shape}; the plan is for {shape}",
            help="make a plan for this shape",
        )


def check_length(length: int, what: str) -> None:
    """Refuse what has no elements.

    Args:
        length: how many there are.
        what: has them, with their number.

    Raises:
        OpenwaferError: ``kernel-length``.
    """
    if length < 1:
        raise error("kernel-length", what, help="give 1 element or more")


def check_memory(memory_bytes: int, what: str) -> None:
    """Refuse what a PE cannot hold.

    Raises:
        OpenwaferError: it does not fit.
    """
    if memory_bytes > MEMORY_BYTES:
        raise error(
            "kernel-memory",
            f"{what} takes {memory_bytes:,} bytes of a PE, {CODE_BYTES:,} of them kept for code; "
            f"a PE has {MEMORY_BYTES:,}",
            help="spread it over more PEs, or take smaller tiles or elements",
        )


@lru_cache(maxsize=32)
def _compiled(name: str, arch: Arch, params: tuple[tuple[str, Param], ...]) -> Compiled:
    layout = PROGRAMS / f"{name}_layout.csl"
    return compile_layout(layout, arch=arch, params=dict(params), options=STRICT)


_profiled: ContextVar[list[Run] | None] = ContextVar("_profiled", default=None)


@dataclass(frozen=True, repr=False)
class _Profiled(Compiled):
    """A program whose runs have a profile, and stay."""

    runs: list[Run] = field(default_factory=list)

    def run(self, options: RuntimeOptions = QUIET, **chosen: Any) -> Run:
        """As of :class:`Compiled`, with a profile."""
        run = super().run(options, **chosen | {"profile": True})
        self.runs.append(run)
        return run


@contextmanager
def profiled() -> Iterator[list[Run]]:
    """Runs of the kernels that are called meanwhile, each with its profile.

    ``runs[-1].profile()`` is that of the last one, also behind the context, and ``.account()`` says
    where the cycles of each PE went.
    """
    runs: list[Run] = []
    before = _profiled.set(runs)
    try:
        yield runs
    finally:
        _profiled.reset(before)


def compiled(name: str, arch: Arch, params: Mapping[str, Param]) -> Compiled:
    """A program of this room, compiled with all warnings as errors."""
    found = _compiled(name, arch, tuple(sorted(params.items())))
    runs = _profiled.get()
    return found if runs is None else _Profiled(found.program, found.name, runs)


def cycles_of(run: Run, arch: Arch) -> int:
    """Cycles of a kernel, from what each PE has counted since its own start."""
    return last_end(run["cycles"].astype(np.int64) @ np.array([1, 1 << 16, 0]), arch)


def last_end(counted: NDArray[np.int64], arch: Arch) -> int:
    """Cycles from the first PE's start to the last one's end: (rows, columns) since their own.

    A command of the host reaches each column a hop later than the one before it.
    """
    starts = GENERATIONS[arch].timing.hop_cycles * np.arange(counted.shape[1])
    return int((counted + starts).max())
