"""The host moves data to and from PEs, launches functions, and streams."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program import FILE_NAME, file
from tests.sdk.host.hand_built import PROGRAM, running

ALL = Region(0, 0, 2, 2, 2)
VALUES = np.arange(8, dtype=np.float32).reshape(2, 2, 2)


class Kept:
    """Keeps what a transfer gives."""

    def __init__(self) -> None:
        self.values = np.zeros(0, np.float32)

    def __call__(self, words: np.ndarray) -> None:
        self.values = words.view(np.float32)


@pytest.fixture
def runtime() -> Runtime:
    return running()


def read_all(runtime: Runtime) -> np.ndarray:
    kept = Kept()
    runtime.copy_from_device(kept, runtime.get_id("A"), ALL)
    return kept.values


def test_what_is_copied_to_the_device_comes_back(runtime: Runtime) -> None:
    runtime.copy_to_device(runtime.get_id("A"), VALUES.view(np.uint32), ALL)
    np.testing.assert_array_equal(read_all(runtime), VALUES)


@pytest.mark.parametrize("kind", list(EngineKind))
def test_a_launch_runs_on_every_pe_behind_the_copy(kind: EngineKind) -> None:
    runtime = running(kind)
    runtime.copy_to_device(runtime.get_id("A"), VALUES.view(np.uint32), ALL, nonblock=True)
    runtime.launch("scale", 3.0)
    expected = VALUES * np.array([3, 1], np.float32)
    np.testing.assert_array_equal(read_all(runtime), expected)


def test_a_call_takes_the_bits_of_its_arguments(runtime: Runtime) -> None:
    runtime.copy_to_device(runtime.get_id("A"), VALUES.view(np.uint32), ALL)
    runtime.call("scale", [0x40000000])
    assert read_all(runtime)[1, 1, 0] == 2 * VALUES[1, 1, 0]


@pytest.mark.parametrize("kind", list(EngineKind))
def test_an_echo_streams_back_what_was_sent(kind: EngineKind) -> None:
    runtime = running(kind)
    words, kept = np.arange(8, dtype=np.uint32).reshape(2, 2, 2), Kept()
    runtime.send(5, words, ALL)
    runtime.receive(kept, 6, ALL)
    np.testing.assert_array_equal(kept.values.view(np.uint32), words)


def test_a_queued_receive_waits_for_a_send_behind_it(runtime: Runtime) -> None:
    words, kept = np.full((1, 1, 2), 7, np.uint32), Kept()
    corner = Region(1, 1, 1, 1, 2)
    task = runtime.receive(kept, 6, corner, nonblock=True)
    runtime.send(5, words, corner, nonblock=True)
    assert runtime.is_task_done(task)
    np.testing.assert_array_equal(kept.values.view(np.uint32), words)


def test_a_queued_operation_waits(runtime: Runtime) -> None:
    task = runtime.launch("scale", 1.0, nonblock=True)
    assert not task.is_done


def test_stopping_finishes_what_is_queued(runtime: Runtime) -> None:
    task = runtime.launch("scale", 1.0, nonblock=True)
    runtime.stop()
    assert task.is_done


def test_a_strided_region_reaches_its_pes_alone(runtime: Runtime) -> None:
    columns = Region(0, 0, 2, 2, 2, step_x=2)
    runtime.copy_to_device(1, np.full(columns.shape, 9, np.uint32), columns)
    assert (read_all(runtime).view(np.uint32) == 9).all(axis=2).tolist() == [[True, False]] * 2


def test_a_symbol_of_bytes_is_read_as_bytes(runtime: Runtime) -> None:
    assert runtime.read_symbol(1, 0, "flags").tolist() == [7, 9]


def test_the_memory_dump_holds_every_pe(runtime: Runtime) -> None:
    runtime.copy_to_device(1, VALUES.view(np.uint32), ALL)
    words = runtime.memory_dump().symbol(1, 1, "A")
    np.testing.assert_array_equal(words.view(np.float32), VALUES[1, 1])


def test_a_receive_that_nobody_sends_is_a_deadlock(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match="fabric-deadlock"):
        runtime.receive(Kept(), 6, ALL)


@pytest.mark.parametrize(
    ("region", "text"),
    [
        (Region(0, 0, 3, 1, 1), r"3 by 1 PEs at \(0, 0\) is not inside of the rectangle of 2 by 2"),
        (Region(-1, 0, 1, 1, 1), r"at \(-1, 0\)"),
        (Region(0, 0, 1, 1, 0), "sizes from 1 on"),
        (Region(0, 0, 1, 1, 99999), "end behind the 24576 words of a PE's memory"),
    ],
)
def test_a_region_that_does_not_fit_is_refused(runtime: Runtime, region: Region, text: str) -> None:
    with pytest.raises(OpenwaferError, match=text):
        runtime.copy_from_device(Kept(), 1, region)


def test_an_unknown_name_suggests_the_closest(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match="did you mean 'scale'"):
        runtime.get_id("scall")


def test_a_function_that_no_pe_exports_is_not_launched() -> None:
    image = replace(PROGRAM.images[0], exported_functions=())
    runtime = Runtime(replace(PROGRAM, images=(image,)), RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    with pytest.raises(OpenwaferError, match="no PE exports the function 'scale'"):
        runtime.launch("scale", 2.0)


def test_an_id_of_a_function_is_no_variable(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match="2 is the id of no exported variable: scale is"):
        runtime.copy_from_device(Kept(), 2, ALL)


def test_a_color_that_is_no_stream_names_those_that_are(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match=r"color 6 is no MEMCPYH2D stream(.|\n)*_1 is 5"):
        runtime.send(6, np.zeros((2, 2, 2), np.uint32), ALL)


def test_commands_before_the_run_are_refused() -> None:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=None))
    runtime.load()
    with pytest.raises(OpenwaferError, match=r"does not run(.|\n)*call run\(\) first"):
        runtime.launch("scale", 1.0)


def test_commands_after_the_end_are_refused(runtime: Runtime) -> None:
    runtime.stop()
    with pytest.raises(OpenwaferError, match="the run is over"):
        runtime.launch("scale", 1.0)


def test_a_runtime_reads_the_output_folder_of_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    file.write(PROGRAM, tmp_path / "bin" / FILE_NAME)
    assert Runtime(tmp_path).get_id("scale") == Runtime(tmp_path / "bin").get_id("scale") == 2


def test_a_tensor_of_another_shape_is_refused(runtime: Runtime) -> None:
    with pytest.raises(OpenwaferError, match=r"shape \(2, 1, 2\); the region takes \(2, 2, 2\)"):
        runtime.copy_to_device(1, np.zeros((2, 1, 2), np.uint32), ALL)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (np.float64, r"astype\(np.float32\)"),
        (np.uint8, r"astype\(np.float32\)"),
        (np.uint16, "view.np.uint16"),
        (np.float32, "view.np.uint32"),
    ],
)
def test_a_tensor_of_other_elements_is_refused(
    runtime: Runtime, kind: type[np.generic], remedy: str
) -> None:
    with pytest.raises(OpenwaferError, match=rf"takes 32-bit words, uint32(.|\n)*{remedy}"):
        runtime.copy_to_device(1, np.zeros((2, 2, 2), kind), ALL)
