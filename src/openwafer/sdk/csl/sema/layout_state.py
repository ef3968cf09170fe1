"""What the layout block says: the rectangle, the code of each PE, routes, and the host's names."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.layout_numbers import Shape
from openwafer.sdk.csl.sema.machine_state import MachineState
from openwafer.sdk.csl.sema.recording import Memo
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.program.program import HostName
from openwafer.sdk.program.routing import ColorConfig
from openwafer.source import Span


@dataclass(frozen=True)
class Rectangle:
    """Where a program lies; pairs are (x, y), columns before rows."""

    size: tuple[int, int]
    fabric: tuple[int, int]
    offset: tuple[int, int]


@dataclass(frozen=True)
class Tiles:
    """PEs that one call gives their code.

    Attributes:
        path: of the file.
        shape: params that the layout gives, without their numbers.
        columns: the numbers, each of all the PEs or one for each of them.
        pes: row-major in the rectangle.
        span: of the call that says so.
    """

    path: Path
    shape: Shape
    columns: tuple[int | NDArray[np.int64], ...]
    pes: NDArray[np.int64]
    span: Span


@dataclass(frozen=True)
class MemoryPlan:
    """Places of an image's variables: their first words by name, and the first word behind them."""

    addresses: Mapping[str, int]
    end: int


@dataclass(frozen=True)
class Surroundings:
    """What the code of a PE may ask of the layout.

    Attributes:
        names: exported to the host, by name.
        tables: of the source, for all images.
        memo: what the analyses of images have in common.
        plans: of the image that was analysed last, by its file.
        named_queues: of WSE-3 that some image uses, by direction and number, with the first place.
        bound_queues: those that some image binds to a color.
        blocked_ids: of local tasks that some image blocks or unblocks, each with the builtin and
            place that name it first.
        bound_ids: those that some image binds a task to.
        has_memcpy: the memcpy library is configured.
        is_simd: two 16-bit elements share a wavelet where a descriptor does not say.
    """

    rectangle: Rectangle
    names: dict[str, HostName]
    tables: DebugTables = field(default_factory=DebugTables)
    memo: Memo = field(default_factory=Memo)
    plans: dict[Path, MemoryPlan] = field(default_factory=dict)
    named_queues: dict[tuple[bool, int], Span] = field(default_factory=dict)
    bound_queues: set[tuple[bool, int]] = field(default_factory=set)
    blocked_ids: dict[int, tuple[str, Span]] = field(default_factory=dict)
    bound_ids: set[int] = field(default_factory=set)
    has_memcpy: bool = False
    is_simd: bool = False

    def note(self, machine: MachineState) -> None:
        """Add the queues and tasks of an image."""
        for queue, span in machine.named_queues.items():
            self.named_queues.setdefault(queue, span)
        for number, named in machine.blocked_ids.items():
            self.blocked_ids.setdefault(number, named)
        self.bound_queues.update(machine.queues)
        self.bound_ids.update(bound.task_id for bound in machine.tasks)


@dataclass
class Deferred:
    """What is done to the layout when it is known in which lanes, of those that were `active`."""

    active: NDArray[np.bool_]
    act: Callable[[NDArray[np.bool_]], None]


@dataclass
class KnownCalls:
    """What is known of functions that loops in lanes call.

    Attributes:
        results: by the function and its arguments, and how many calls deep each went.
        acting: ids of declarations that have changed the layout.
        parting: of others, whose lanes have gone several ways.
    """

    results: dict[Hashable, tuple[Comptime, int]] = field(default_factory=dict)
    acting: set[int] = field(default_factory=set)
    parting: set[int] = field(default_factory=set)


@dataclass
class LayoutState:
    """Filled by the builtins of the layout block.

    Attributes:
        tables: of the source, for the images, too.
        constants: numbers of the names at the top of the layout's file.
        rectangle: None before `@set_rectangle`.
        is_refused: `@set_rectangle` was called and failed.
        tiles: in the order of the calls.
        tiles_of: for each PE, 1 and the index in `tiles`; 0 before it has any.
        configs: color configurations, each with the place that made it.
        configs_of: by color, for each PE 1 and the index in `configs`; 0 where there is none.
        streams: color of each stream between host and PEs, by its name.
        has_memcpy: the memcpy library was configured.
        has_numbered_streams: a stream was given by a number, as the SDK has it from 2.10 on.
        files: of tiles, by the name as written and the file that says so.
        known_configs: color configurations read before, by struct and color.
        walked: ids of the loops that have to be followed iteration by iteration, and of functions
            behind whose calls lanes do not meet.
        calls: of functions that leave the layout as it is.
        deferred: what loops that are followed in lanes do, in order.
        printed: lines of `@comptime_print`, of the layout before those of each image.
    """

    tables: DebugTables = field(default_factory=DebugTables)
    constants: tuple[int, ...] = ()
    rectangle: Rectangle | None = None
    is_refused: bool = False
    tiles: list[Tiles] = field(default_factory=list)
    tiles_of: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    configs: list[tuple[ColorConfig, Span]] = field(default_factory=list)
    configs_of: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    names: dict[str, HostName] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    has_memcpy: bool = False
    has_numbered_streams: bool = False
    files: dict[tuple[str, Path], Path] = field(default_factory=dict)
    known_configs: dict[tuple[Comptime, int], ColorConfig] = field(default_factory=dict)
    walked: set[int] = field(default_factory=set)
    calls: KnownCalls = field(default_factory=KnownCalls)
    printed: list[str] = field(default_factory=list)
    _numbers: dict[tuple[ColorConfig, int], int] = field(default_factory=dict)
    deferred: list[Deferred] = field(default_factory=list)
    _is_settling: bool = False
    _claims: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = field(default_factory=list)

    def narrow(self, mark: int, active: NDArray[np.bool_]) -> None:
        """Let what was deferred from `mark` on act for these lanes only."""
        for one in self.deferred[mark:]:
            one.active = one.active & active

    def place(self, rectangle: Rectangle) -> None:
        """Take the rectangle that the program asks for."""
        self.rectangle = rectangle
        self.is_refused = False
        self.tiles_of = np.zeros(self.num_pes, np.int32)

    @property
    def num_pes(self) -> int:
        """PEs of the rectangle."""
        assert self.rectangle is not None
        return self.rectangle.size[0] * self.rectangle.size[1]

    def configs_of_color(self, color: int) -> NDArray[np.int32]:
        """See `configs_of`."""
        if color not in self.configs_of:
            self.configs_of[color] = np.zeros(self.num_pes, np.int32)
        return self.configs_of[color]

    def number_of(self, config: ColorConfig, span: Span) -> int:
        """1 and the index of a configuration in `configs`."""
        key = config, span.start
        if key not in self._numbers:
            self.configs.append((config, span))
            self._numbers[key] = len(self.configs)
        return self._numbers[key]

    def claim(self, numbers: NDArray[np.int32], pes: NDArray[np.int64], number: int) -> None:
        """Give PEs their number of tiles or of a color's configuration."""
        numbers[pes] = number
        if self._is_settling:
            self._claims.append((numbers, pes))

    def settle(self) -> None:
        """Do what was deferred; nothing of it when something raises."""
        self._is_settling, num_tiles = True, len(self.tiles)
        try:
            for one in self.deferred:
                if one.active.any():
                    one.act(one.active)
        except BaseException:
            for numbers, pes in self._claims:
                numbers[pes] = 0
            del self.tiles[num_tiles:]
            raise
        finally:
            self._is_settling = False
            self._claims.clear()
            self.deferred.clear()
