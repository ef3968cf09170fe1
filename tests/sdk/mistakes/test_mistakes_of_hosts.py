"""Mistakes of host scripts, through Python's door and the vendor's, each with the words it gets."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.sdkruntimepybind import MemcpyDataType, SdkRuntime
from openwafer.sdk.door.run import Run
from tests.sdk.door.small_program import small_program

Act = Callable[[Any], object]
ROWS, COLUMNS = 2, 3
"""Of PEs; `single` has three elements on each, `half` and `signed` two, `count` one."""
CORNER = (0, 0, 1, 1)
BITS_16, BITS_32 = MemcpyDataType.MEMCPY_16BIT, MemcpyDataType.MEMCPY_32BIT
SINGLES = np.ones(3, np.float32)


def assign(name: str, values: object) -> Act:
    def act(run: Run) -> None:
        run[name] = values  # type: ignore[assignment]

    return act


def send(
    name: str, src: object, num: int, corner: tuple[float, ...] = CORNER, **options: Any
) -> Act:
    return lambda runner: runner.memcpy_h2d(runner.get_id(name), src, *corner, num, **options)


def take(name: str, dest: object, num: int, **options: Any) -> Act:
    return lambda runner: runner.memcpy_d2h(dest, runner.get_id(name), *CORNER, num, **options)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


DOOR: Mapping[str, tuple[Act, str]] = {
    "integers_too_long_for_a_float": (
        assign("single", np.full((ROWS, COLUMNS, 3), 2**24 + 1)),
        "float32, which cannot hold 16777217 exactly",
    ),
    "integers_too_long_for_a_half": (assign("half", 2049), "float16, which cannot hold 2049"),
    "float_too_large_for_a_half": (assign("half", 1e6), "do not reach as far as 1000000.0"),
    "float_too_large_for_a_single": (assign("single", 1e40), "do not reach as far as 1e+40"),
    "floats_for_integers": (assign("count", 1.5), "elements of uint16, these values are float64"),
    "negative_for_unsigned": (assign("count", -1), "do not reach as far as -1"),
    "integer_too_large": (assign("signed", 2**40), "do not reach as far as 1099511627776"),
    "one_element_too_many": (assign("single", np.zeros((2, 3, 4))), "take values of shape"),
    "rows_and_columns_swapped": (assign("single", np.zeros((3, 2, 3))), "rows, columns, elements"),
    "text_for_numbers": (assign("single", "1.0"), "these values are <U3"),
    "complex_for_floats": (assign("single", 1j), "these values are complex128"),
    "truth_values_for_floats": (assign("single", True), "these values are bool"),
    "nothing_for_numbers": (assign("single", None), "these values are object"),
    "name_misspelt": (lambda run: run["singel"], "did you mean 'single'?"),
    "function_read": (lambda run: run["add"], "'add'"),
    "variable_launched": (lambda run: run.launch("single"), "'single'"),
    "function_misspelt": (lambda run: run.launch("ad"), "did you mean 'add'?"),
    "argument_forgotten": (lambda run: run.launch("add", 1.0), "add"),
    "argument_too_many": (lambda run: run.launch("add", 1.0, 2, 3), "add"),
    "argument_of_text": (lambda run: run.launch("add", "1.0", 2), "add"),
    "argument_out_of_range": (lambda run: run.launch("add", 1.0, 40_000), "40000"),
    "fraction_for_an_integer": (lambda run: run.launch("add", 1.0, 2.5), "2.5"),
    "row_out_of_range": (lambda run: run["single", 2], "2 takes none of 2 rows"),
    "index_of_an_element": (lambda run: run["single", 0, 0, 0], "the array's last dim"),
    "backwards": (lambda run: run["single", ::-1], "takes them backwards"),
    "uneven_lengths": (lambda run: run["uneven"], "has not one number of elements"),
    "type_that_hosts_cannot_copy": (lambda run: run["flag"], "[*]bool"),
    "stream_unknown": (lambda run: run.receive("MEMCPYD2H_2", 1), "it has MEMCPYH2D_1"),
    "stream_of_one_dim": (lambda run: run.send("MEMCPYH2D_1", SINGLES), "takes three dims"),
    "stream_of_doubles": (
        lambda run: run.send("MEMCPYH2D_1", np.ones((2, 3, 1))),
        "of 2 or 4 bytes an element; these values have 3 of float64",
    ),
    "receives_what_nobody_sent": (
        lambda run: run.receive("MEMCPYD2H_1", 1),
        "has 1 word of color 5 still to send",
    ),
    "function_without_an_end": (lambda run: run.launch("never"), "unblock_cmd_stream"),
    "used_when_it_is_over": (lambda run: (run.close(), run["single"]), "the run is over"),
    "read_before_anything_computed_it": (
        lambda run: run["single"],
        "a copy of 'single' reads what nothing has written",
    ),
    "array_for_a_number": (lambda run: run.launch("add", SINGLES, 2), "arg0 is f32, got ndarray"),
    "nothing_received": (lambda run: run.receive("MEMCPYD2H_1", 0), "needs sizes from 1 on"),
}
VENDOR: Mapping[str, tuple[Act, str]] = {
    "bytes_in_the_other_order": (send("single", SINGLES.astype(">f4"), 3), "in the other order"),
    "integers_for_floats": (send("single", np.ones(3, np.int32), 3), "takes the bits of src"),
    "floats_for_integers": (send("signed", np.ones(2, np.float32), 2), "takes the bits of src"),
    "source_too_short": (send("single", SINGLES, 4), "src has 3 elements; the region takes 4"),
    "source_too_long": (send("single", np.ones(9, np.float32), 3), "the first 3 of the 9"),
    "doubles": (send("single", np.ones(3), 3), "convert it: array.astype(np.float32)"),
    "list_for_an_array": (send("single", [1.0, 1.0, 1.0], 3), "is of type list, not a numpy array"),
    "halves_not_widened": (send("half", np.ones(2, np.float16), 2), "widen 16-bit data first"),
    "copy_of_16_bits_for_singles": (
        send("single", np.ones(3, np.uint32), 3, data_type=BITS_16),
        "moves elements of 16 bits, and its type [*]f32 has elements of 32",
    ),
    "copy_of_32_bits_for_halves": (
        send("half", np.ones(1, np.uint32), 1, data_type=BITS_32),
        "moves elements of 32 bits, and its type [*]f16 has elements of 16",
    ),
    "floats_for_halves": (
        send("half", np.ones(2, np.float32), 2, data_type=BITS_16),
        "takes the low halves of src",
    ),
    "longer_than_the_variable": (send("single", np.ones(4, np.float32), 4), "takes 4 elements"),
    "shorter_than_the_variable": (send("single", SINGLES[:2], 2), "take 2 of its 3 elements"),
    "outside_of_the_rectangle": (send("single", SINGLES, 3, (3, 0, 1, 1)), "region"),
    "region_of_fractions": (send("single", SINGLES, 3, (0.5, 0, 1, 1)), "takes integers, got 0.5"),
    "option_misspelt": (send("single", SINGLES, 3, non_block=True), "did you mean 'nonblock'?"),
    "order_as_text": (send("single", SINGLES, 3, order="row"), "give MemcpyOrder.ROW_MAJOR"),
    "data_type_as_number": (send("single", SINGLES, 3, data_type=32), "give MemcpyDataType."),
    "name_for_an_id": (
        lambda runner: runner.memcpy_h2d("single", SINGLES, *CORNER, 3),
        "take the id of a name from get_id(name)",
    ),
    "dest_read_only": (take("single", read_only(np.zeros(3, np.float32)), 3), "is read-only"),
    "dest_of_doubles": (take("single", np.zeros(3), 3), "make it with elements of 4 bytes"),
    "dest_too_short": (take("single", np.zeros(2, np.float32), 3), "has 2 elements"),
    "symbol_for_a_stream": (send("single", SINGLES, 3, streaming=True), "is no MEMCPYH2D stream"),
    "name_unknown": (lambda runner: runner.get_id("doubles"), "exports no name 'doubles'"),
    "words_out_of_range": (lambda runner: runner.call("add", [-1, 0]), "-1 is no 32-bit word"),
    "symbol_misspelt": (lambda runner: runner.read_symbol(0, 0, "singel"), "singel"),
    "symbol_of_no_pe": (lambda runner: runner.read_symbol(9, 0, "single"), "9"),
    "order_of_the_other_module": (
        send("single", SINGLES, 3, order=MemcpyDataType.MEMCPY_32BIT),
        "not of MemcpyOrder",
    ),
    "read_before_anything_computed_it": (
        take("single", np.zeros(3, np.float32), 3),
        "a copy of 'single' reads what nothing has written",
    ),
    "dest_of_integers_for_floats": (
        take("single", np.zeros(3, np.int32), 3),
        "puts its bits into dest, which has elements of int32",
    ),
    "dest_of_floats_for_integers": (
        take("signed", np.zeros(2, np.float32), 2),
        "make dest with elements of np.int32",
    ),
    "integers_longer_than_16_bits": (
        send("count", np.array([70_000], np.int32), 1, data_type=BITS_16),
        "takes the low halves of src, which holds 70000",
    ),
    "complex_numbers": (send("single", np.ones(3, np.complex64), 3), "elements of 8 bytes"),
    "truth_values": (send("signed", np.ones(2, np.bool_), 2), "elements of 1 bytes (bool)"),
    "function_copied_to": (
        lambda runner: runner.memcpy_h2d(runner.get_id("add"), SINGLES, *CORNER, 3),
        "add is a function",
    ),
    "variable_launched": (lambda runner: runner.launch("single"), "is no exported function"),
    "function_misspelt": (lambda runner: runner.launch("ad"), "did you mean 'add'?"),
    "no_elements": (send("single", SINGLES, 0), "a transfer needs sizes from 1 on"),
    "corner_below_zero": (send("single", SINGLES, 3, (-1, 0, 1, 1)), "PEs at (-1, 0) is not"),
    "copy_when_it_is_over": (
        lambda runner: (runner.stop(), send("single", SINGLES, 3)(runner)),
        "make a new runtime",
    ),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> wafer.Compiled:
    folder = tmp_path_factory.mktemp("program")
    compiled = small_program(folder, COLUMNS, ROWS)
    compiled.save(folder / "out")
    return compiled


@pytest.fixture
def runner(
    program: wafer.Compiled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> SdkRuntime:
    monkeypatch.setenv("OPENWAFER_CHECK", "warning")
    monkeypatch.chdir(tmp_path)
    program.save(tmp_path / "out")
    runner = SdkRuntime("out", suppress_simfab_trace=True)
    runner.load()
    runner.run()
    return runner


@pytest.mark.parametrize("name", DOOR)
def test_python_is_told_of(name: str, program: wafer.Compiled) -> None:
    act, words = DOOR[name]
    with pytest.raises(OpenwaferError) as told, program.run(check=True) as run:
        act(run)
    assert words in str(told.value)


def test_a_name_that_is_assigned_to_as_an_attribute_is_refused(program: wafer.Compiled) -> None:
    with (
        program.run() as run,
        pytest.raises(AttributeError, match="'Run' object has no attribute 'single'"),
    ):
        run.single = SINGLES  # type: ignore[attr-defined]


def test_negative_numbers_of_16_bits_are_no_longer_ones(
    runner: SdkRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    send("count", np.array([-5], np.int32), 1, data_type=BITS_16)(runner)
    runner.stop()
    assert "low halves" not in capsys.readouterr().err


@pytest.mark.parametrize("name", VENDOR)
def test_a_vendor_script_is_told_of(
    name: str, runner: SdkRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    act, words = VENDOR[name]
    told = ""
    try:
        act(runner)
        runner.stop()
    except OpenwaferError as error:
        told = str(error)
    assert words in told + capsys.readouterr().err
