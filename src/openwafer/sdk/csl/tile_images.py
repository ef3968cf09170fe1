"""The images of a program: each stands for all PEs whose code and memory come out the same.

PEs that run one file with params that differ in numbers only are analysed at once. Where the
compiler has to know such a number, those with another one are analysed again; where a number only
reaches run time, it becomes a parameter that each PE has its own value of.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError
from openwafer.sdk.csl.image_records import finished_image
from openwafer.sdk.csl.lanes import Group, Lanes, Parting, settled
from openwafer.sdk.csl.lint.routes import Traffic, traffic_of
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.image import ImageResult
from openwafer.sdk.csl.sema.image_names import in_common
from openwafer.sdk.csl.sema.layout_numbers import Shape, with_numbers
from openwafer.sdk.csl.sema.layout_state import LayoutState, Tiles
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.ir.function import Module
from openwafer.sdk.program.image import Image

# Tables beat sorting while they are not much longer than what is ranked.
_LARGEST_TABLE: Final = 1 << 22

Numbers: TypeAlias = NDArray[np.int64]
Analyse: TypeAlias = Callable[[Path, dict[str, Comptime], Group], ImageResult]


@dataclass(frozen=True)
class ImagesOfTiles:
    """See the module.

    Attributes:
        images: distinct ones.
        modules: of each image.
        image_of: number of each PE's image, row-major.
        parameters: shape (PEs, n): each PE's own values.
        printed: lines of `@comptime_print`.
        warnings: of all images, each once.
        traffic: of each image, the colors that its code sends and reads.
        samples: params of one PE, for each file.
    """

    images: tuple[Image, ...]
    modules: tuple[Module, ...]
    image_of: NDArray[np.int32]
    parameters: Numbers
    printed: tuple[str, ...]
    warnings: tuple[Diagnostic, ...]
    traffic: tuple[Traffic, ...]
    samples: Mapping[Path, dict[str, Comptime]]


def images_of(state: LayoutState, options: CompileOptions, analyse: Analyse) -> ImagesOfTiles:
    """Analyse the code of every PE.

    Raises:
        OpenwaferError: everything wrong that was found.
    """
    making = _Making(options, analyse, np.zeros(state.num_pes, np.int32), state.tables)
    for batch in _tiles_by_program(state.tiles):
        _analyse_batch(making, batch)
    if making.findings:
        raise OpenwaferError(*making.findings)
    width = max((len(image.parameters) for image in making.images), default=0)
    parameters = np.zeros((state.num_pes, width), np.int64)
    for pes, values in making.parameters:
        parameters[pes, : values.shape[1]] = values
    return ImagesOfTiles(
        images=tuple(making.images),
        modules=tuple(making.modules),
        image_of=making.image_of,
        parameters=parameters,
        printed=tuple(making.printed),
        warnings=tuple(making.warnings),
        traffic=tuple(making.traffic),
        samples=making.samples,
    )


class _Making:
    """What has been found so far."""

    def __init__(
        self,
        options: CompileOptions,
        analyse: Analyse,
        image_of: NDArray[np.int32],
        tables: DebugTables,
    ) -> None:
        self.options = options
        self.analyse = analyse
        self.image_of = image_of
        self.tables = tables
        self.images: list[Image] = []
        self.modules: list[Module] = []
        self.traffic: list[Traffic] = []
        self.parameters: list[tuple[Numbers, Numbers]] = []
        self.printed: list[str] = []
        self.warnings: list[Diagnostic] = []
        self.findings: list[Diagnostic] = []
        self.numbers: dict[Image, int] = {}
        self.samples: dict[Path, dict[str, Comptime]] = {}

    def number_of(self, image: Image, module: Module, traffic: Traffic) -> int:
        """Number of an image, whose name tells nothing apart."""
        key = replace(image, name="")
        if key not in self.numbers:
            self.numbers[key] = len(self.images)
            self.images.append(image)
            self.modules.append(module)
            self.traffic.append(traffic)
        number = self.numbers[key]
        names = in_common(self.tables, self.images[number].names, image.names)
        self.images[number] = replace(self.images[number], names=names)
        return number


@dataclass(frozen=True)
class _Batch:
    """PEs with one file and one shape of params; `columns` hold a number of each PE."""

    path: Path
    shape: Shape
    pes: Numbers
    columns: tuple[Numbers, ...]


def _tiles_by_program(tiles: Sequence[Tiles]) -> Iterator[_Batch]:
    members_of: dict[tuple[Path, Shape], list[Tiles]] = {}
    for one in tiles:
        members_of.setdefault((one.path, one.shape), []).append(one)
    for (path, shape), members in members_of.items():
        sizes = [one.pes.size for one in members]
        columns = (
            np.concatenate(
                [np.broadcast_to(np.int64(c), n) for c, n in zip(column, sizes, strict=True)]
            )
            for column in zip(*(one.columns for one in members), strict=True)
        )
        pes = np.concatenate([one.pes for one in members])
        yield _Batch(path, shape, pes, tuple(columns))


def _analyse_batch(making: _Making, batch: _Batch) -> None:
    firsts, row_of = _distinct_rows(batch.pes.size, batch.columns)
    rows = [column[firsts] for column in batch.columns]
    if batch.path not in making.samples:
        first = iter([int(row[0]) for row in rows])
        making.samples[batch.path] = with_numbers(batch.shape, first)
    left, beginning = np.ones(firsts.size, bool), Parting()
    while left.any():
        group = Group(firsts.size)
        group.active = left.copy()
        group.part_as_before(beginning)
        params = with_numbers(
            batch.shape,
            iter([Lanes(group, row) if (row != row[0]).any() else int(row[0]) for row in rows]),
        )
        try:
            image, module, values, traffic = _analyse(making, batch.path, params, group)
        except OpenwaferError as failure:
            making.findings.extend(d for d in failure.diagnostics if d not in making.findings)
        else:
            chosen = group.active[row_of]
            making.image_of[batch.pes[chosen]] = making.number_of(image, module, traffic)
            if values.size:
                making.parameters.append((batch.pes[chosen], values[row_of[chosen]]))
        left &= ~group.active


def _analyse(
    making: _Making, path: Path, params: dict[str, Comptime], group: Group
) -> tuple[Image, Module, Numbers, Traffic]:
    """An image, its module, its parameters by row, and its traffic.

    `group` keeps the rows that share them.
    """
    result = making.analyse(path, params, group)
    image = settled(finished_image("", result, making.options.arch))
    making.warnings.extend(w for w in result.warnings if w not in making.warnings)
    making.printed.extend(result.printed)
    columns = [value.numbers.astype(np.int64) for value, _ in result.state.parameters]
    values = np.stack(columns, axis=1) if columns else np.zeros((group.active.size, 0), np.int64)
    traffic = traffic_of(result.module, result.state, making.options.arch)
    return replace(image, name=_name(path, params)), result.module, values, traffic


def _name(path: Path, params: dict[str, Comptime]) -> str:
    shown = (f"{name}={value.value}" for name, value in params.items() if _is_shown(value))
    return f"{path.name}({', '.join(shown)})"


def _is_shown(param: Comptime) -> bool:
    value = param.value
    return value.is_one() if isinstance(value, Lanes) else isinstance(value, int | float)


def _distinct_rows(num_rows: int, columns: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """The first of each distinct row, in order, and for each row which of them it is like."""
    codes = np.zeros(num_rows, np.int64)
    for column in columns:
        if (column != column[0]).any():
            own = _ranks(column)
            codes = _ranks(codes * (int(own.max()) + 1) + own)
    firsts = np.full(int(codes.max()) + 1, num_rows)
    np.minimum.at(firsts, codes, np.arange(num_rows))
    order = np.argsort(firsts)
    return firsts[order], np.argsort(order)[codes]


def _ranks(numbers: Numbers) -> Numbers:
    """Each number's place among the distinct ones, from 0 on."""
    lowest = numbers.min()
    count = int(numbers.max() - lowest) + 1
    if count > _LARGEST_TABLE:
        return np.unique(numbers, return_inverse=True)[1]
    places = numbers - lowest
    is_there = np.zeros(count, bool)
    is_there[places] = True
    return np.asarray((np.cumsum(is_there) - 1)[places])
