"""A run of a program: arrays by name, launches, streams, cycles."""

from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.door.elements import Element, element_of
from openwafer.sdk.fabric import Account, Passed, Print
from openwafer.sdk.host import DataType, LineCycles, Region, Runtime, RuntimeOptions, tensors
from openwafer.sdk.profile import Grouping, Profile, profile_of
from openwafer.sdk.program.program import Program

Index: TypeAlias = int | slice
Key: TypeAlias = str | tuple[str] | tuple[str, Index] | tuple[str, Index, Index]
ALL = slice(None)


class Run:
    """A program on the simulated fabric, from its start until :meth:`close`.

    ``run["x"]`` is what the exported variable ``x`` holds on all PEs: an array of the shape (rows,
    columns, elements) and of the variable's own type. ``run["x", 0]`` is that of the first row of
    PEs, ``run["x", 1:3, -1]`` that of two PEs of the last column. All of them can be assigned to:
    ``run["x"] = values``. What is read cannot be written to, since it is a copy.

    As a context it is closed at its end. A program that has not come to its own end by then is
    reported with what each PE waits for.

    Args:
        program: compiled.
        options: how it is simulated.
    """

    # What is assigned to a name, as in run.x = values, would go nowhere.
    __slots__ = ("_is_closed", "_program", "_runtime")

    def __init__(self, program: Program, options: RuntimeOptions) -> None:
        self._program = program
        self._runtime = Runtime(program, options)
        self._runtime.load()
        self._runtime.run()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._runtime.tell()

    def close(self) -> None:
        """End the run.

        Raises:
            OpenwaferError: the program fails, or waits for what does not come.
        """
        if not self._is_closed:
            self._is_closed = True
            self._runtime.stop()

    def __getitem__(self, key: Key) -> NDArray[Any]:
        name, rows, columns = _parts(key)
        element = self._element(name)
        region = self._sized(name, element, rows, columns)
        taken: list[NDArray[np.uint32]] = []
        number = self._runtime.get_id(name)
        self._runtime.copy_from_device(taken.append, number, region, element.data_type)
        return _without(element.from_words(taken[0]), rows, columns)

    def __setitem__(self, key: Key, values: ArrayLike) -> None:
        name, rows, columns = _parts(key)
        element = self._element(name)
        region = self._sized(name, element, rows, columns)
        shape = _without(np.empty(region.shape, np.bool_), rows, columns).shape
        words = element.to_words(values, shape).reshape(region.shape)
        self._runtime.copy_to_device(self._runtime.get_id(name), words, region, element.data_type)

    def read(self, name: str, num_elements: int) -> NDArray[Any]:
        """The first elements of a variable on all PEs: (rows, columns, elements).

        A pointer's are those behind where it points at that time, which `run[name]` takes all of.

        Args:
            name: of the exported variable or pointer.
            num_elements: of each PE.
        """
        element = self._element(name)
        region = self._region(ALL, ALL, num_elements)
        taken: list[NDArray[np.uint32]] = []
        self._runtime.copy_from_device(
            taken.append, self._runtime.get_id(name), region, element.data_type
        )
        return element.from_words(taken[0])

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write the first elements of a variable on all PEs; see :meth:`read`.

        Args:
            name: of the exported variable or pointer.
            values: (rows, columns, elements).
        """
        element = self._element(name)
        region = self._region(ALL, ALL, values.shape[-1])
        words = element.to_words(values, region.shape)
        self._runtime.copy_to_device(self._runtime.get_id(name), words, region, element.data_type)

    def launch(self, function: str, *arguments: float) -> None:
        """Start an exported function on every PE that exports it, and do not wait for its end.

        Args:
            function: its name.
            arguments: a number for each of its parameters, in the range of its type.
        """
        self._runtime.launch(function, *arguments)

    def send(self, stream: str, values: ArrayLike, rows: Index = ALL, columns: Index = ALL) -> None:
        """Stream values to the cores of a region of PEs.

        Args:
            stream: name of a stream to the device, such as ``"MEMCPYH2D_1"``.
            values: a wavelet each, of four bytes, or of two in the low half: (rows, columns, n).
            rows: of the PEs that take them.
            columns: of the PEs that take them.
        """
        array = np.asarray(values)
        if array.dtype.itemsize not in (2, 4) or array.ndim != 3:
            raise error(
                "host-element-size",
                f"a stream takes three dims of 2 or 4 bytes an element; these values have "
                f"{array.ndim} of {array.dtype}",
                help="give an array [rows, columns, n], such as values.astype(np.float32)",
            )
        data_type = DataType.BITS_16 if array.dtype.itemsize == 2 else DataType.BITS_32
        words = tensors.from_memory(np.ascontiguousarray(array).view(np.uint16), data_type)
        region = self._region(rows, columns, array.shape[2])
        self._runtime.send(self._color(stream), words, region)

    def receive(
        self,
        stream: str,
        num_elements: int,
        dtype: DTypeLike = np.uint32,
        rows: Index = ALL,
        columns: Index = ALL,
    ) -> NDArray[Any]:
        """Take what the cores of a region of PEs stream to the host: (rows, columns, elements).

        Args:
            stream: name of a stream to the host, such as ``"MEMCPYD2H_1"``.
            num_elements: wavelets of each PE.
            dtype: of four bytes, or of two, which are those of the low half.
            rows: of the PEs that send.
            columns: of the PEs that send.
        """
        element = Element(stream, np.dtype(dtype))
        taken: list[NDArray[np.uint32]] = []
        region = self._region(rows, columns, num_elements)
        self._runtime.receive(taken.append, self._color(stream), region)
        return element.from_words(taken[0])

    def send_port(
        self,
        port: str,
        values: ArrayLike,
        *,
        color: int | None = None,
        is_control: ArrayLike = False,
    ) -> None:
        """Let values wait to enter the fabric through a port, behind those that do.

        They enter as time goes by, as fast as the port and the routes let them.

        Args:
            port: its name.
            values: a wavelet each, of four bytes, or of two in the low half: any shape.
            color: of those on which words enter there; None is the only one.
            is_control: which of them are control wavelets: one for all, or the shape of `values`.
        """
        array = np.asarray(values)
        if array.dtype.itemsize not in (2, 4):
            raise error(
                "host-element-size",
                f"port {port!r} takes 2 or 4 bytes a wavelet; these values are {array.dtype}",
                help="convert them, as with values.astype(np.float32)",
            )
        kind = np.uint16 if array.dtype.itemsize == 2 else np.uint32
        words = np.ascontiguousarray(array).view(kind).astype(np.uint32).ravel()
        flags = np.broadcast_to(np.asarray(is_control, np.uint32), array.shape).ravel()
        self._runtime.send_port(port, np.stack([words, flags]) if flags.any() else words, color)

    def receive_port(
        self,
        port: str,
        num_elements: int,
        dtype: DTypeLike = np.uint32,
        *,
        color: int | None = None,
    ) -> NDArray[Any]:
        """Wait until words have left the fabric through a port, and take them: (elements,).

        Args:
            port: its name.
            num_elements: how many wavelets.
            dtype: of four bytes, or of two, which are those of the low half.
            color: of those on which words leave there; None is the only one.
        """
        element = Element(port, np.dtype(dtype))
        taken: list[NDArray[np.uint32]] = []
        self._runtime.receive_port(taken.append, port, num_elements, color)
        return element.from_words(taken[0][0])

    def passed(self, port: str) -> tuple[Passed, Passed]:
        """Words that have entered through a port and left by it up to now, with their cycles."""
        return self._runtime.passed(port)

    @property
    def copy_cycles(self) -> int:
        """Cycles that copies up to now take at best, a wavelet a cycle and channel.

        Nothing moves on the fabric in most of them, and then :attr:`cycles` has none of them.
        """
        return self._runtime.copy_cycles

    @property
    def cycles(self) -> int:
        """Cycles from the start until what was launched has ended and the fabric is at rest."""
        self._settle()
        return self._runtime.cycle

    def account(self) -> Account:
        """Where the cycles of each PE's threads and datapath went, of :attr:`cycles`.

        Raises:
            OpenwaferError: the run was started without ``account=True``.
        """
        self._settle()
        return self._runtime.account()

    @property
    def prints(self) -> tuple[Print, ...]:
        """What the PEs have printed up to now: cycle, x, y and text."""
        return self._runtime.prints()

    def line_cycles(self, rows: Index = ALL, columns: Index = ALL) -> tuple[LineCycles, ...]:
        """Where the main threads of a region of PEs have spent their time, by line.

        Waits for what was launched. Lines are in the order of file and line; those without cycles
        are left out.

        Args:
            rows: of the PEs whose cycles are summed up.
            columns: of these PEs.

        Raises:
            OpenwaferError: the run was started without ``line_cycles=True``.
        """
        self._settle()
        return self._runtime.line_cycles(self._region(rows, columns, 1))

    def profile(
        self, rows: Index = ALL, columns: Index = ALL, by: Grouping | str = Grouping.FILE
    ) -> Profile:
        """Where the cycles of a region of PEs went up to now.

        Waits for what was launched; a program that fails has a profile up to there, which says so.

        Args:
            rows: of the PEs.
            columns: of the PEs.
            by: how they are grouped: ``"file"`` of their code, ``"image"`` or ``"pe"``.

        Raises:
            OpenwaferError: the run was started without ``profile=True``.
        """
        with suppress(OpenwaferError):
            self._settle()
        region = self._region(rows, columns, 1)
        pes = [self._program.number_of(x, y) for _, _, x, y in region.pes()]
        return profile_of(self._runtime.booked(), pes, Grouping(by))

    def __repr__(self) -> str:
        state = "ended" if self._is_closed else "running"
        rows, columns = self._program.height, self._program.width
        return f"<run on {rows} rows and {columns} columns of PEs, {state}>"

    def _settle(self) -> None:
        """Let what was launched end and the fabric come to rest, unless the run is over."""
        if not self._is_closed and not self._runtime.has_failed:
            self._runtime.wait()

    def _element(self, name: str) -> Element:
        return element_of(name, self._runtime.symbols.variable_named(name).type)

    def _region(self, rows: Index, columns: Index, num_elements: int) -> Region:
        down = _range(rows, self._program.height, "rows")
        across = _range(columns, self._program.width, "columns")
        return Region(
            across.start,
            down.start,
            across.stop - across.start,
            down.stop - down.start,
            num_elements,
            across.step,
            down.step,
        )

    def _sized(self, name: str, element: Element, rows: Index, columns: Index) -> Region:
        """The region of all elements of a variable."""
        region = self._region(rows, columns, 1)
        number = self._runtime.get_id(name)
        num_elements = self._runtime.num_elements(number, region, element.data_type)
        return self._region(rows, columns, num_elements)

    def _color(self, stream: str) -> int:
        colors = dict(self._program.streams)
        if stream not in colors:
            known = ", ".join(colors) or "none"
            raise error(
                "host-stream-unknown",
                f"the program has no stream {stream!r}; it has {known}",
                help="give <memcpy/get_params> a field such as .MEMCPYH2D_1 with the color",
            )
        return colors[stream]


def _parts(key: Key) -> tuple[str, Index, Index]:
    name, *indices = (key,) if isinstance(key, str) else key
    if len(indices) > 2:
        raise error(
            "host-index",
            f"run[{', '.join(map(repr, key))}] has more indices than rows and columns of PEs",
            help="write run[name], run[name, rows] or run[name, rows, columns]; elements are the "
            "array's last dim",
        )
    rows, columns = (*indices, ALL, ALL)[:2]
    return name, rows, columns


def _range(index: Index, length: int, what: str) -> range:
    """The places of an index of numpy's; a negative one counts from the end."""
    if isinstance(index, slice):
        places = range(*index.indices(length))
    else:
        place = index + length if index < 0 else index
        places = range(place, place + 1)
    if not places or places.step < 1 or not 0 <= places.start < length:
        raise error(
            "host-region-outside",
            f"{index} takes none of {length} {what} of PEs, or takes them backwards",
            help="coordinates count from the rectangle's north-west PE",
        )
    return places


def _without(array: NDArray[Any], rows: Index, columns: Index) -> NDArray[Any]:
    """An array without the dims of which one place was asked for, as numpy indexes."""
    taken = tuple(ALL if isinstance(index, slice) else 0 for index in (rows, columns))
    return array[taken]
