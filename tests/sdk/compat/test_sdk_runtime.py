"""The vendor's runtime class on a hand-built program: orders, broadcasts, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.debug_util import debug_util
from openwafer.sdk.compat.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
from openwafer.sdk.compiler.artifacts import compilation_of
from tests.sdk.host.hand_built import PROGRAM, WITHOUT_MEMCPY

VALUES = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
ROW = {"order": MemcpyOrder.ROW_MAJOR, "data_type": MemcpyDataType.MEMCPY_32BIT}
COLUMN = {"order": MemcpyOrder.COL_MAJOR, "data_type": MemcpyDataType.MEMCPY_32BIT}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    compilation_of(PROGRAM).write(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def runner(folder: Path) -> SdkRuntime:
    runner = SdkRuntime(str(folder), cmaddr=None, suppress_simfab_trace=True)
    runner.load()
    runner.run()
    return runner


def read(runner: SdkRuntime, **options: object) -> np.ndarray:
    dest = np.zeros((8, 1), np.uint32)
    runner.memcpy_d2h(dest, runner.get_id("A"), 0, 0, 2, 2, 2, streaming=False, **options)
    return dest.view(np.float32)


def test_row_major_data_comes_back_as_it_went(runner: SdkRuntime) -> None:
    runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, streaming=False, nonblock=True, **ROW)
    np.testing.assert_array_equal(read(runner, **ROW).ravel(), VALUES.ravel())


def test_floats_of_32_bits_in_a_copy_of_16_are_told(
    runner: SdkRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    half = {"order": MemcpyOrder.ROW_MAJOR, "data_type": MemcpyDataType.MEMCPY_16BIT}
    runner.memcpy_h2d(1, VALUES.ravel().view(np.uint32) & 0xFFFF, 0, 0, 2, 2, 2, **half)
    runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, **half)
    runner.stop()
    assert capsys.readouterr().err.count("warning[host-halves]: a copy of 16-bit elements") == 1


def test_column_major_data_is_the_same_tensor_in_another_order(runner: SdkRuntime) -> None:
    runner.memcpy_h2d(1, VALUES.T.ravel(), 0, 0, 2, 2, 2, **COLUMN)
    np.testing.assert_array_equal(read(runner, **ROW).ravel(), VALUES.ravel())


def test_a_column_of_data_is_broadcast_over_rows(runner: SdkRuntime) -> None:
    runner.memcpy_h2d_rowbcast(1, VALUES[:, 0].ravel(), 0, 0, 2, 2, 2, **ROW)
    expected = np.broadcast_to(VALUES[:, :1], (2, 2, 2))
    np.testing.assert_array_equal(read(runner, **ROW).reshape(2, 2, 2), expected)


def test_a_row_of_data_is_broadcast_over_columns(runner: SdkRuntime) -> None:
    runner.memcpy_h2d_colbcast(1, VALUES[0].ravel(), 0, 0, 2, 2, 2, **ROW)
    expected = np.broadcast_to(VALUES[:1], (2, 2, 2))
    np.testing.assert_array_equal(read(runner, **ROW).reshape(2, 2, 2), expected)


def test_strides_reach_every_second_row(runner: SdkRuntime) -> None:
    ones = np.ones(4, np.float32)
    runner.memcpy_h2d_stride(1, ones, 0, 0, 2, 2, 2, 1, 2, **ROW)
    assert read(runner, **ROW).ravel().tolist() == [1] * 4 + [0] * 4


def test_16_bit_data_takes_the_low_halves(runner: SdkRuntime) -> None:
    words = np.array([0xAAAA0001, 0xBBBB0002], np.uint32)
    half = {"order": MemcpyOrder.ROW_MAJOR, "data_type": MemcpyDataType.MEMCPY_16BIT}
    runner.memcpy_h2d(1, words, 0, 0, 1, 1, 2, **half)
    back = np.zeros(2, np.uint32)
    runner.memcpy_d2h(back, 1, 0, 0, 1, 1, 2, **half)
    assert back.tolist() == [1, 2]


def test_symbols_are_read_after_the_run_in_fabric_coordinates(
    runner: SdkRuntime, folder: Path
) -> None:
    runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, **ROW)
    runner.stop()
    found = debug_util(folder).get_symbol_rect(((4, 1), (2, 2)), "A", np.float32)
    np.testing.assert_array_equal(found, VALUES.transpose(1, 0, 2))


def test_symbols_are_read_from_a_core_file(runner: SdkRuntime, folder: Path) -> None:
    runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, **ROW)
    runner.dump_core("corefile.cs1")
    found = debug_util(folder).get_symbol(5, 2, "A", np.float32)
    np.testing.assert_array_equal(found, VALUES[1, 1])


def test_a_program_that_has_not_run_has_no_symbols(folder: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no run of .* has ended(.|\n)*call stop\(\) first"):
        debug_util(folder)


def test_stopping_writes_statistics_that_scripts_parse(runner: SdkRuntime) -> None:
    runner.launch("scale", 1.0, nonblock=False)
    runner.stop()
    statistics = json.loads(Path("sim_stats.json").read_text())
    assert (statistics["fabric_x"], statistics["fabric_y"]) == (9, 4)
    assert statistics["cycle_count"] > 0


def test_logical_coordinates_become_physical(runner: SdkRuntime) -> None:
    assert runner.coord_logical_to_physical((1, 0)) == (5, 1)


def test_a_misspelled_option_of_a_transfer_suggests_the_right_one(runner: SdkRuntime) -> None:
    with pytest.raises(OpenwaferError, match=r"no option 'non_block'(.|\n)*'nonblock'"):
        runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, non_block=True)


@pytest.mark.parametrize(
    ("src", "text"),
    [
        ([0.0] * 8, r"src is of type list, not a numpy array"),
        (VALUES.astype(np.float64), r"8 bytes \(float64\), not of 4(.|\n)*astype\(np.float32\)"),
        (VALUES.astype(np.int64), r"8 bytes \(int64\), not of 4(.|\n)*astype\(np.int32\)"),
        (VALUES.astype(np.float16), r"2 bytes \(float16\), not of 4(.|\n)*input_array_to_u32"),
    ],
)
def test_data_of_another_kind_is_told_how_to_become_words(
    runner: SdkRuntime, src: object, text: str
) -> None:
    with pytest.raises(OpenwaferError, match=text):
        runner.memcpy_h2d(1, src, 0, 0, 2, 2, 2, **ROW)  # type: ignore[arg-type]


def test_a_name_is_no_id(runner: SdkRuntime) -> None:
    with pytest.raises(OpenwaferError, match=r"is 'A', not an id(.|\n)*get_id\(name\)"):
        runner.memcpy_h2d("A", VALUES.ravel(), 0, 0, 2, 2, 2, **ROW)  # type: ignore[arg-type]


def test_a_destination_in_the_place_of_the_id_is_refused(runner: SdkRuntime) -> None:
    with pytest.raises(OpenwaferError, match="dest is of type int, not a numpy array"):
        runner.memcpy_d2h(1, VALUES.ravel(), 0, 0, 2, 2, 2, **ROW)  # type: ignore[arg-type]


def test_a_size_that_is_no_integer_is_refused(runner: SdkRuntime) -> None:
    with pytest.raises(OpenwaferError, match=r"a region takes integers, got 2\.0"):
        runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 4 / 2, **ROW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"data_type": np.float32}, "not of MemcpyDataType(.|\n)*MemcpyDataType.MEMCPY_16BIT or"),
        ({"order": "row"}, "order is 'row', not of MemcpyOrder(.|\n)*MemcpyOrder.ROW_MAJOR or"),
    ],
)
def test_an_option_of_another_type_names_its_values(
    runner: SdkRuntime, option: dict[str, object], text: str
) -> None:
    with pytest.raises(OpenwaferError, match=text):
        runner.memcpy_h2d(1, VALUES.ravel(), 0, 0, 2, 2, 2, **option)


def test_a_system_address_is_refused(folder: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no system at 1\.2\.3\.4"):
        SdkRuntime(folder, cmaddr="1.2.3.4")


def test_too_many_threads_are_refused(folder: Path) -> None:
    with pytest.raises(OpenwaferError, match="65 threads; the simulator takes 1 to 64"):
        SdkRuntime(folder, simfab_numthreads=65)


def test_a_program_without_memcpy_is_refused_in_the_known_words(tmp_path: Path) -> None:
    compilation_of(WITHOUT_MEMCPY).write(tmp_path)
    with pytest.raises(OpenwaferError, match="n_channels=0 corresponds to the deprecated runtime"):
        SdkRuntime(tmp_path)


def test_a_step_of_nothing_is_refused(runner: SdkRuntime) -> None:
    with pytest.raises(OpenwaferError, match="a transfer needs sizes from 1 on"):
        runner.memcpy_h2d_stride(1, VALUES.ravel(), 0, 0, 2, 2, 2, 0, 1, **ROW)


def test_a_destination_that_is_read_only_is_refused(runner: SdkRuntime) -> None:
    dest = np.zeros(8, np.uint32)
    dest.flags.writeable = False
    with pytest.raises(OpenwaferError, match="dest is read-only"):
        runner.memcpy_d2h(dest, 1, 0, 0, 2, 2, 2, **ROW)
