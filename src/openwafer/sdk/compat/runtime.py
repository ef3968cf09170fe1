"""The vendor's runtime class."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.atomic_file import write_bytes, write_text
from openwafer.diagnostics import did_you_mean, error
from openwafer.sdk.compat.finished_runs import remember
from openwafer.sdk.compat.layout.ports import Port, find_port, read_ports
from openwafer.sdk.compat.platform import (
    SdkCompileArtifacts,
    SdkExecutionPlatform,
    SimfabConfig,
    check_threads,
    no_system,
)
from openwafer.sdk.compat.transfer_enums import MemcpyDataType, MemcpyOrder
from openwafer.sdk.host import (
    DataType,
    Region,
    Runtime,
    RuntimeOptions,
    Task,
    check_writeable,
    fill,
    from_region,
    host_words,
)
from openwafer.sdk.host.copies import halves_of_source, kind_of_copy, longer_source

_MESSAGE_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_TRACES: Final = """\
Traces in the vendor's format are not written: it is not documented. sim.log has the run's prints,
and with SIMFABRIC_DEBUG=landing the landing of every wavelet; sim_stats.json has its counts.
"""
_TRANSFER_OPTIONS: Final = {
    "streaming": False,
    "data_type": MemcpyDataType.MEMCPY_32BIT,
    "order": MemcpyOrder.ROW_MAJOR,
    "nonblock": False,
}


class SdkRuntime:
    """Runs a compiled program; methods as the vendor documents them.

    Args:
        bindir: the compiler's output folder, or artifacts of a layout in Python.
        platform: where to run.
        options: `cmaddr` (must be empty), `suppress_simfab_trace`, `simfab_numthreads`,
            `msg_level`, `memcpy_required`.
    """

    def __init__(
        self,
        bindir: Path | str | SdkCompileArtifacts,
        platform: SdkExecutionPlatform | None = None,
        **options: Any,
    ) -> None:
        _check_options(options)
        path = bindir.artifacts_path if isinstance(bindir, SdkCompileArtifacts) else bindir
        self._folder = Path(path)
        self._has_traces = not options.get("suppress_simfab_trace", False)
        self._platform = platform
        self._ports = read_ports(self._folder / "bin")
        needs_memcpy = options.get("memcpy_required", True)
        threads = platform.config.num_threads if platform else SimfabConfig().num_threads
        threads = options.get("simfab_numthreads", threads)
        runtime_options = RuntimeOptions(
            can_idle=not needs_memcpy, threads=threads, can_stop_unfinished=True
        )
        self._runtime = Runtime(self._folder, runtime_options)
        if needs_memcpy and self._runtime.program.channels == 0:
            raise error(
                "no-memcpy",
                "n_channels=0 corresponds to the deprecated runtime CSELFRunner",
                help="compile with --memcpy --channels=1, or give memcpy_required=False",
            )

    def load(self) -> None:
        """Put the program on the fabric."""
        self._runtime.load()

    def run(self) -> None:
        """Start the PEs."""
        self._runtime.run()

    def stop(self) -> None:
        """Finish all operations and end the run."""
        self._runtime.stop()
        remember(self._folder, self._runtime.memory_dump())
        if self._has_traces and not (self._platform and self._platform.config.suppress_trace):
            _leave_trace_folder()
        if self._platform is not None and self._platform.config.dump_core:
            self.dump_core(str(self._platform.config.core_path or "out.core"))

    def get_id(self, symbol: str) -> int:
        """Return the id of an exported name."""
        return self._runtime.get_id(symbol)

    def launch(self, symbol: str | int, *args: Any, nonblock: bool = False) -> Task:
        """Start an exported function."""
        return self._runtime.launch(symbol, *args, nonblock=nonblock)

    def call(self, sym: str, params: Any = (), nonblock: bool = False) -> Task:
        """Start an exported function with 32-bit words as arguments."""
        return self._runtime.call(sym, [int(word) for word in params], nonblock)

    def memcpy_h2d(  # noqa: PLR0913 - the vendor's parameters
        self,
        dest: int,
        src: NDArray[Any],
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        **kwargs: Any,
    ) -> Task:
        """Copy or stream a host tensor to a region of PEs."""
        region = self._region(px, py, w, h, elem_per_pe)
        return self._to_device(dest, src, region, region, kwargs)

    def memcpy_h2d_rowbcast(  # noqa: PLR0913 - the vendor's parameters
        self,
        dest: int,
        src: NDArray[Any],
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        **kwargs: Any,
    ) -> Task:
        """The same from one column's data, A[h][elem_per_pe], for every column."""
        region = self._region(px, py, w, h, elem_per_pe)
        return self._to_device(dest, src, region, replace(region, width=1), kwargs)

    def memcpy_h2d_colbcast(  # noqa: PLR0913 - the vendor's parameters
        self,
        dest: int,
        src: NDArray[Any],
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        **kwargs: Any,
    ) -> Task:
        """The same from one row's data, A[w][elem_per_pe], for every row."""
        region = self._region(px, py, w, h, elem_per_pe)
        return self._to_device(dest, src, region, replace(region, height=1), kwargs)

    def memcpy_h2d_stride(  # noqa: PLR0913 - the vendor's parameters
        self,
        dest: int,
        src: NDArray[Any],
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        row_stride: int,
        col_stride: int,
        **kwargs: Any,
    ) -> Task:
        """The same to every `row_stride`-th PE of a row and every `col_stride`-th of a column."""
        region = self._region(px, py, w, h, elem_per_pe, row_stride, col_stride)
        return self._to_device(dest, src, region, region, kwargs)

    def memcpy_d2h(  # noqa: PLR0913 - the vendor's parameters
        self,
        dest: NDArray[Any],
        src: int,
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        **kwargs: Any,
    ) -> Task:
        """Copy from, or take what is streamed by, a region of PEs."""
        options = _transfer_options(kwargs)
        region = self._region(px, py, w, h, elem_per_pe)
        order = options["order"].order
        host_words(dest, region, order, "dest")
        check_writeable(dest, "dest")

        def take(words: NDArray[np.uint32]) -> None:
            fill(dest, from_region(words, order))

        nonblock = options["nonblock"]
        if options["streaming"]:
            return self._runtime.receive(take, _device_id(src), region, nonblock)
        data_type = options["data_type"].data_type
        if data_type is DataType.BITS_32:
            variable = self._runtime.symbols.variable(_device_id(src))
            self._runtime.warn_of_copy(kind_of_copy(variable, dest, "dest"))
        return self._runtime.copy_from_device(take, _device_id(src), region, data_type, nonblock)

    def send(
        self,
        port: str | int,
        src: NDArray[Any],
        n_wavelets: int | None = None,
        *,
        nonblock: bool = False,
    ) -> Task:
        """Stream an array to an input port of a layout in Python."""
        place, region = self._port(port, src, n_wavelets, is_input=True)
        words = host_words(src, region, MemcpyOrder.ROW_MAJOR.order, "src")
        return self._runtime.send(place.color, words, region, nonblock)

    def receive(
        self,
        port: str | int,
        dest: NDArray[Any],
        n_wavelets: int | None = None,
        *,
        nonblock: bool = False,
    ) -> Task:
        """Take an array from an output port of a layout in Python."""
        place, region = self._port(port, dest, n_wavelets, is_input=False)
        host_words(dest, region, MemcpyOrder.ROW_MAJOR.order, "dest")
        check_writeable(dest, "dest")

        def take(words: NDArray[np.uint32]) -> None:
            fill(dest, words.reshape(-1))

        return self._runtime.receive(take, place.color, region, nonblock)

    def receive_tofile(
        self, port: str | int, outfile: Path | str, *, nonblock: bool = False
    ) -> Task:
        """Write what comes from an output port, until the fabric is at rest, to a file.

        The file holds the wavelets' 32-bit words, the low byte first.
        """
        place = find_port(self._ports, port)

        def take(words: NDArray[np.uint32]) -> None:
            write_bytes(Path(outfile), words.astype("<u4").tobytes())

        return self._runtime.receive_rest(take, place.color, (place.x, place.y), nonblock)

    def get_port_id(self, port_name: str) -> int:
        """Return the number of a port."""
        return self._ports.index(find_port(self._ports, port_name))

    def report_port_infos(self) -> None:
        """Print the name, color and place of every port."""
        for port in self._ports:
            word = "input" if port.is_input else "output"
            sys.stdout.write(f"{port.name}: {word}, color {port.color}, PE {port.x}, {port.y}\n")

    def task_wait(self, task_handle: Task) -> None:
        """Wait for a task."""
        self._runtime.task_wait(task_handle)

    def is_task_done(self, task_handle: Task) -> bool:
        """Whether a task is done."""
        return self._runtime.is_task_done(task_handle)

    def read_symbol(self, x: int, y: int, symbol_name: str, dtype: str = "uint8") -> NDArray[Any]:
        """Return the values of a symbol of PE (x, y) of the rectangle."""
        return self._runtime.read_symbol(x, y, symbol_name).view(dtype)

    def dump_core(self, corefile: str) -> None:
        """Write the memory of all PEs."""
        self._runtime.memory_dump().write(Path(corefile))

    def coord_logical_to_physical(self, logical_coords: tuple[int, int]) -> tuple[int, int]:
        """Return fabric coordinates of a PE of the rectangle."""
        offset = self._runtime.program.offset
        return logical_coords[0] + offset[0], logical_coords[1] + offset[1]

    def _region(self, *numbers: object) -> Region:
        """A region by the numbers that the host gave, numpy's among them."""
        region = Region(*map(_integer, numbers))
        region.check(self._runtime.program)
        return region

    def _port(
        self, key: str | int, array: NDArray[Any], num_wavelets: int | None, *, is_input: bool
    ) -> tuple[Port, Region]:
        port = find_port(self._ports, key)
        if port.is_input is not is_input:
            kind, verb = ("input", "sends to") if port.is_input else ("output", "receives from")
            message = f"{port.name} is a stream of an {kind} port: the host {verb} it"
            raise error("port-direction", message)
        length = array.size if num_wavelets is None else num_wavelets
        return port, self._region(port.x, port.y, 1, 1, length)

    def _to_device(
        self,
        dest: int,
        src: NDArray[Any],
        region: Region,
        given: Region,
        kwargs: dict[str, Any],
    ) -> Task:
        options = _transfer_options(kwargs)
        words = host_words(src, given, options["order"].order, "src")
        words = np.broadcast_to(words, region.shape)
        nonblock = options["nonblock"]
        if options["streaming"]:
            return self._runtime.send(_device_id(dest), words, region, nonblock)
        data_type = options["data_type"].data_type
        variable = self._runtime.symbols.variable(_device_id(dest))
        if data_type is DataType.BITS_16:
            self._runtime.warn_of_copy(halves_of_source(src, words))
        else:
            self._runtime.warn_of_copy(kind_of_copy(variable, src, "src"))
        self._runtime.warn_of_copy(longer_source(variable, src, math.prod(given.shape)))
        return self._runtime.copy_to_device(_device_id(dest), words, region, data_type, nonblock)


def _transfer_options(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in _TRANSFER_OPTIONS:
            raise error(
                "transfer-option",
                f"a transfer has no option {name!r}",
                help=did_you_mean(name, _TRANSFER_OPTIONS),
            )
    for name, kind in (("data_type", MemcpyDataType), ("order", MemcpyOrder)):
        value = given.get(name, _TRANSFER_OPTIONS[name])
        if not isinstance(value, kind):
            members = " or ".join(f"{kind.__name__}.{one.name}" for one in kind)
            message = f"{name} is {value!r}, not of {kind.__name__}"
            raise error("transfer-option", message, help=f"give {members}")
    return _TRANSFER_OPTIONS | given


def _integer(number: object) -> int:
    if not isinstance(number, int | np.integer):
        message = f"a region takes integers, got {number!r}"
        raise error("host-region-number", message, help="use // or int(...)")
    return int(number)


def _device_id(value: Any) -> int:
    """The device's side of a transfer: the id of a name, or the color of a stream."""
    if not isinstance(value, int | np.integer):
        given = repr(value) if isinstance(value, str) else f"of type {type(value).__name__}"
        raise error(
            "transfer-id",
            f"the device's side of a transfer is {given}, not an id",
            help="take the id of a name from get_id(name)",
        )
    return int(value)


def _leave_trace_folder() -> None:
    """Scripts move this folder to where they keep a run."""
    folder = Path("simfab_traces")
    folder.mkdir(exist_ok=True)
    write_text(folder / "README.txt", _TRACES)


def _check_options(options: dict[str, Any]) -> None:
    known = (
        "cmaddr",
        "suppress_simfab_trace",
        "simfab_numthreads",
        "msg_level",
        "memcpy_required",
    )
    for name in options:
        if name not in known:
            raise error(
                "runtime-option",
                f"SdkRuntime has no option {name!r}",
                help=did_you_mean(name, known),
            )
    if options.get("cmaddr"):
        raise no_system(options["cmaddr"])
    check_threads(options.get("simfab_numthreads", 5))
    level = options.get("msg_level", "WARNING")
    if level not in _MESSAGE_LEVELS:
        raise error("message-level", f"msg_level is {level!r}, not one of {_MESSAGE_LEVELS}")
