"""Arrays go to PEs and come back by name and region, in their own types."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from tests.sdk.door.small_program import CODE, LAYOUT, small_program

SHAPES = {"single": (2, 3, 3), "half": (2, 3, 2), "count": (2, 3, 1), "signed": (2, 3, 2)}
DTYPES = {"single": np.float32, "half": np.float16, "count": np.uint16, "signed": np.int32}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> wafer.Compiled:
    return small_program(tmp_path_factory.mktemp("program"))


def waiting(program: wafer.Compiled) -> wafer.Run:
    """A run whose PEs never take another command."""
    run = program.run()
    run.launch("never")
    return run


@pytest.fixture
def run(program: wafer.Compiled) -> Iterator[wafer.Run]:
    with program.run() as run:
        yield run


@pytest.mark.parametrize("name", SHAPES)
def test_an_array_comes_back_in_its_own_type(run: wafer.Run, name: str) -> None:
    values = np.arange(np.prod(SHAPES[name])).reshape(SHAPES[name]).astype(DTYPES[name])
    run[name] = values
    assert run[name].dtype == DTYPES[name]
    np.testing.assert_array_equal(run[name], values)


@pytest.mark.parametrize(
    "place",
    [(0,), (-1,), (slice(None), 1), (slice(1, 2), slice(0, 3, 2)), (1, -1), (slice(0, 1),)],
    ids=str,
)
def test_regions_are_taken_as_numpy_takes_them(run: wafer.Run, place: tuple[int | slice]) -> None:
    values = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    run["single"] = values
    np.testing.assert_array_equal(run["single", *place], values[place])
    run["single", *place] = values[place] + 100
    values[place] += 100
    np.testing.assert_array_equal(run["single"], values)


def test_values_are_broadcast(run: wafer.Run) -> None:
    run["single"] = [1, 2, 3]
    run["single", 0] = 7
    expected = np.broadcast_to(np.array([1, 2, 3], np.float32), (2, 3, 3)).copy()
    expected[0] = 7
    np.testing.assert_array_equal(run["single"], expected)


def test_an_account_says_where_cycles_went(program: wafer.Compiled) -> None:
    with program.run(account=True) as run:
        run["single"] = 1
        run.launch("add", 1.0, 2)
        cycles = run.cycles
        account = run.account()
    assert account.num_cycles == cycles
    assert account.cycles.shape == (6, 9, len(account.states))
    assert (account.cycles.sum(axis=2) == cycles).all()
    assert account.of(2, 1)[8, wafer.SlotState.SCALAR] > 0
    assert account.datapath.shape == (6, 10)


def test_a_replay_books_what_the_run_did(program: wafer.Compiled, tmp_path: Path) -> None:
    kept = wafer.RuntimeOptions(log_folder=None, journal=tmp_path / "journal")
    with program.run(kept, account=True) as run:
        run["single"] = 1
        run.launch("add", 1.0, 2)
        first = run.account()
    again = program.replay(tmp_path / "journal", until=first.num_cycles, account=True)
    np.testing.assert_array_equal(again.simulator.account().cycles, first.cycles)


def test_a_run_that_was_not_booked_says_how_to_book_it(run: wafer.Run) -> None:
    with pytest.raises(OpenwaferError, match=r"compiled\.run\(account=True\)"):
        run.account()


def test_what_is_read_cannot_be_written_to(run: wafer.Run) -> None:
    with pytest.raises(ValueError, match="read-only"):
        run["single"][0] = 1.0


def test_a_launch_takes_numbers_and_cycles_go_on(run: wafer.Run) -> None:
    run["single"] = [1, 2, 3]
    before = run.cycles
    run.launch("add", 0.5, -2)
    assert run.cycles > before
    np.testing.assert_array_equal(run["single", 1, 1], np.array([-1.5, -3.5, -5.5], np.float32))


def test_arrays_of_other_lengths_are_copied_by_region(run: wafer.Run) -> None:
    run["uneven", :, 2] = 4.0
    run["uneven", :, :2] = 3.0
    assert run["uneven", 0, 2].shape == (4,)
    assert run["uneven", 0, 0].shape == (3,)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("single", np.zeros((3, 2, 3)), r"shape \(2, 3, 3\).*these have \(3, 2, 3\)"),
        ("single", np.zeros(3, complex), "elements of float32, these values are complex128"),
        ("single", [1e300], "do not reach as far as 1e\\+300"),
        ("half", [1.0, 70000.0], "do not reach as far as 70000"),
        ("count", [65536], "do not reach as far as 65536"),
        ("count", [-1], "do not reach as far as -1"),
        ("signed", [0.5, 1.0], "elements of int32, these values are float64"),
        ("uneven", 0.0, r"3 on PE \(0, 0\), 4 on PE \(2, 0\)"),
        ("flag", True, r"flag is of type \[\*\]bool; the host copies f16, "),
        ("singel", 0.0, "no name 'singel'"),
        ("add", 0.0, "'add' is a function"),
    ],
)
def test_what_does_not_fit_is_refused(
    run: wafer.Run, name: str, values: ArrayLike, message: str
) -> None:
    with pytest.raises(OpenwaferError, match=message):
        run[name] = values


@pytest.mark.parametrize("place", [(2,), (0, 3), (slice(2, 5),), (slice(None, None, -1),)], ids=str)
def test_a_region_without_pes_is_refused(run: wafer.Run, place: tuple[int | slice]) -> None:
    with pytest.raises(OpenwaferError, match="takes none of"):
        run["single", *place]


def test_elements_are_no_index_of_pes(run: wafer.Run) -> None:
    with pytest.raises(OpenwaferError, match="more indices than rows and columns"):
        run["single", 0, 0, 0]  # type: ignore[index]


def test_infinity_is_a_value_of_floats(run: wafer.Run) -> None:
    run["half"] = [np.inf, -np.inf]
    assert np.isinf(run["half"]).all()


def test_a_launch_that_never_ends_is_reported(program: wafer.Compiled) -> None:
    with pytest.raises(OpenwaferError, match="PE"):
        _ = waiting(program).cycles


def test_an_error_of_ones_own_passes_a_run_that_waits(program: wafer.Compiled) -> None:
    with pytest.raises(KeyError, match="mine"), waiting(program):
        raise KeyError("mine")


def test_streams_are_arrays_too(run: wafer.Run) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    run.send("MEMCPYH2D_1", values)
    np.testing.assert_array_equal(run.receive("MEMCPYD2H_1", 2, np.float32), 2 * values)
    run.send("MEMCPYH2D_1", values[:1, 1:], rows=slice(0, 1), columns=slice(1, 3))
    taken = run.receive("MEMCPYD2H_1", 2, np.float32, slice(0, 1), slice(1, 3))
    np.testing.assert_array_equal(taken, 2 * values[:1, 1:])


def test_a_stream_takes_values_of_four_bytes(run: wafer.Run) -> None:
    with pytest.raises(OpenwaferError, match="these values have 3 of float64"):
        run.send("MEMCPYH2D_1", np.zeros((2, 3, 1)))


def test_streams_have_names(run: wafer.Run) -> None:
    with pytest.raises(OpenwaferError, match="no stream 'h2d'; it has MEMCPYH2D_1, MEMCPYD2H_1"):
        run.send("h2d", np.zeros((2, 3, 1), np.float32))


def test_a_checked_run_raises_the_mistakes_of_its_program_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(CODE.replace("@range(u16, 3)", "@range(u16, length)"))
    program = wafer.compile(tmp_path / "layout.csl", params={"width": 3, "height": 1})
    run = program.run(check=True)
    run.launch("add", 1.0, 2)
    with pytest.raises(
        OpenwaferError, match=r"PE \(2, 0\) read element 3 of 'single' \(\[3\]f32\)"
    ):
        run.close()
