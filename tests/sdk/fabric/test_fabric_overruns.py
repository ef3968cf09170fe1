"""Vector operations that go over the end of a variable."""

from collections.abc import Generator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import SimulatorOptions, operand, overrun
from openwafer.sdk.fabric import words as w
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.descriptor import DsdFlag
from openwafer.sdk.program.image import QueueBinding, Start, Symbol
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import (
    Dsr,
    Pe,
    PythonCode,
    Task,
    Words,
    fabin,
    fabout,
    image,
    mem1d,
    mem4d,
    program,
)

ASYNC, TERMINATE = int(mb.Option.ASYNC), int(mb.Option.TERMINATE_ON_CONTROL)
SAVE = int(mb.Option.SAVE_ADDRESS)
LOOP = ((3, ColorConfig(16, 16)),)
ARRAY = Symbol("array", 1000, 20, "u16", (20,))
OTHER = Symbol("other", 1020, 20, "u16", (20,))
MANY = mem1d(1050, 1000)
Code = Generator[None, None, None]


def told(task: Task, rows: int = 1, **options: bool | int) -> list[str]:
    """What is said about one or more PEs with two arrays, stack from word 1050 on."""
    queues = QueueBinding(True, 1, 3), QueueBinding(False, 2, 3)
    start = Start(blocked=1 << 3)
    own = image("code", symbols=(OTHER, ARRAY), stack_base=1050, queues=queues, start=start)
    code, grid = PythonCode([task]), [[0]] * rows
    simulator = code.simulator(program(grid, [own], [LOOP]), SimulatorOptions(**options))  # type: ignore[arg-type]
    simulator.start_command([0])
    simulator.run_until_idle(10_000)
    return [warning.message for warning in simulator.findings()]


def moved_from(*sources: Words) -> Task:
    """An entry that copies to the stack, each source at a place of its own in the program."""

    def entry(pe: Pe) -> Code:
        for place, source in enumerate(sources):
            pe.vector("mov16", MANY, source)
            pe.mailbox[mb.PLACE] = place
            yield

    return entry


@pytest.mark.parametrize(
    "source",
    [
        mem1d(1000, 20),
        mem1d(1019, 20, -1),
        mem1d(1001, 7, 3),
        mem4d(1000, [5, 4], [1, 1]),
        mem4d(1004, [5, 4], [-1, 9]),
        mem4d(1000, [20, 3], [1, -19]),
        mem1d(1050, 40),
    ],
)
def test_what_stays_inside_is_silent(source: Words) -> None:
    assert told(moved_from(source)) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (mem1d(1000, 21), "read up to 1 element behind the end of 'array' ([20]u16)"),
        (mem1d(1000, 8, 3), "read up to 2 elements behind the end of 'array' ([20]u16)"),
        (mem1d(1005, 8, -1), "read up to 2 elements before the start of 'array' ([20]u16)"),
        (mem4d(1000, [3, 4], [1, 5]), "read up to 4 elements behind the end of 'array' ([20]u16)"),
        (
            mem4d(1000, [21, 2], [1, -20]),
            "read up to 1 element behind the end of 'array' ([20]u16)",
        ),
        (mem1d(1040, 1), "read memory in which no variable lies"),
    ],
)
def test_what_goes_over_an_end_is_told(source: Words, said: str) -> None:
    assert told(moved_from(source)) == [f"@mov16 of PE (0, 0) {said}"]


def test_a_place_is_told_once_and_other_places_as_well() -> None:
    too_long = mem1d(1000, 30)

    def entry(pe: Pe) -> Code:
        for place in (0, 1, 0, 1):
            pe.vector("mov16", MANY, too_long)
            pe.mailbox[mb.PLACE] = place
            yield

    assert len(told(entry)) == 2


def test_what_a_control_wavelet_ends_has_only_touched_what_came() -> None:
    def entry(pe: Pe) -> Code:
        options = ASYNC | TERMINATE
        pe.vector("mov16", mem1d(1019, 1), fabin(3, 100, 1), options=options)
        yield
        pe.vector("mov16", fabout(3, 1, 2, int(DsdFlag.CONTROL)), 7)
        yield

    assert told(entry) == []


def test_what_comes_from_the_fabric_and_goes_too_far_is_told_of_its_microthread() -> None:
    def entry(pe: Pe) -> Code:
        pe.vector("mov16", mem1d(1018, 1), fabin(3, 4, 1), options=ASYNC)
        yield
        pe.vector("mov16", fabout(3, 4, 2), 7)
        yield

    said = "wrote up to 2 elements behind the end of 'array' ([20]u16)"
    assert told(entry) == [f"@mov16 of PE (0, 0) {said}"]


@pytest.mark.parametrize(("index", "far"), [(19, 0), (25, 6)])
def test_an_index_counts_from_the_array_of_its_descriptor(index: int, far: int) -> None:
    def entry(pe: Pe) -> Code:
        source = mem1d(1000, 1, flags=int(DsdFlag.WAVELET_INDEX))
        pe.vector("mov16", MANY, source, options=int(mb.Option.HAS_INDEX), index=index)
        yield

    text = f"read up to {far} elements behind the end of 'array' ([20]u16)"
    assert told(entry) == ([f"@mov16 of PE (0, 0) {text}"] if far else [])


@pytest.mark.parametrize(
    ("length", "named"),
    [
        (10, "'a1' (u16)"),
        (14, "'a1' (u16), 'a2' (u16), 'a3' (u16)"),
        (40, "'a1' (u16), 'a2' (u16), 'a3' (u16) and 3 more"),
    ],
)
def test_the_variables_in_the_way_are_named_from_the_nearest_on(length: int, named: str) -> None:
    small = [Symbol(f"a{n}", 1008 + 2 * (n - 1), 1, "u16") for n in range(1, 6)]
    long = Symbol("long", 1000, 8, "u16", (8,))
    own = image("code", symbols=(long, *small), stack_base=1030)
    code = PythonCode([moved_from(mem1d(1000, length))])
    simulator = code.simulator(program([[0]], [own]))
    simulator.start_command([0])
    simulator.run_until_idle(10_000)
    (warning,) = simulator.findings()
    assert warning.notes[-1] == f"what lies there is {named}"


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_circular_buffer_goes_round_in_its_array(steps: int) -> None:
    circular = (5, 1000, 13, 0, 1, 1, 20, 0)

    def entry(pe: Pe) -> Code:
        pe.request(mb.Request.LOAD_DSR, 2 << 8 | 1, circular, options=SAVE)
        yield
        for _ in range(steps):
            pe.vector("mov16", MANY, Dsr(2, 1))
            yield

    assert told(entry) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_pe_of_a_cycle_is_told_at_any_number_of_threads(threads: int) -> None:
    messages = told(moved_from(mem1d(1000, 21)), rows=3, threads=threads)
    assert messages == [
        "@mov16 of PE (0, 0) read up to 1 element behind the end of 'array' ([20]u16)"
    ]


def test_an_overrun_is_an_error_where_that_is_asked_for() -> None:
    said = r"error\[fabric-overrun\]: @mov16 of PE \(0, 0\) read up to 1 element behind"
    with pytest.raises(OpenwaferError, match=said):
        told(moved_from(mem1d(1000, 21)), stops_at_overrun=True)


def row_of(extents: Sequence[int], strides: Sequence[int]) -> list[int]:
    row = [0] * w.OPERAND_WORDS
    row[w.O_DIMS] = len(extents)
    row[w.O_EXTENTS : w.O_EXTENTS + len(extents)] = extents
    row[w.O_STRIDES : w.O_STRIDES + len(strides)] = strides
    return row


def walked(row: list[int], num: int) -> list[int]:
    """Addresses of elements, one by one; the row is then behind them."""
    addresses = []
    for _ in range(num):
        addresses.append(row[w.O_ADDRESS])
        operand.step.py_func(row, 0)  # type: ignore[attr-defined]
    return addresses


dims = st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 9)), min_size=2, max_size=4)


@given(dims, st.integers(1, 400))
def test_the_reach_of_an_operand_is_that_of_its_elements(
    shape: list[tuple[int, int]], num: int
) -> None:
    row = row_of(*zip(*shape, strict=True))
    low, high = overrun.reach.py_func(row, 0, num)  # type: ignore[attr-defined]
    addresses = walked(row, num)
    assert (low, high) == (min(addresses), max(addresses))


@given(dims, st.integers(0, 30), st.integers(1, 30))
def test_an_operation_that_goes_on_knows_where_its_first_element_was(
    shape: list[tuple[int, int]], skipped: int, num: int
) -> None:
    row = row_of(*zip(*shape, strict=True))
    total = int(np.prod([extent for extent, _ in shape]))
    walked(row, skipped % total)
    row[w.O_BASE] = row[w.O_ADDRESS]
    num = min(num, total - skipped % total)
    walked(row, num)
    number = overrun.first_number.py_func(row, 0, num)  # type: ignore[attr-defined]
    assert number == skipped % total
    assert overrun.begin_of.py_func(row, 0, number) == 0  # type: ignore[attr-defined]
