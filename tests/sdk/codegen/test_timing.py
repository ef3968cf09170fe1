"""Cycles of scalar code follow the machine's figures, natively and in the interpreter."""

import pytest

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.program import mailbox
from tests.sdk.codegen.oracle import Native, Trail, assert_agrees, read_module, run_native

_LOOP = """
global @x 16 3
entry &main
fn &main($n: i16) void {
  slot $i: i16
head:
  jump[test] !0
test:
  %0 = get[i] i16 !0
  %1 = get[n] i16 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body: loop_end
  %3 = load i16 @x !0
  %4 = load i16 @x+2 !0
  %5 = add i16 %3, %4 !0
  store @x+4, %5 !0
  %6 = get[i] i16 !0
  %7 = add i16 %6, 1:i16 !0
  set[i] %7 !0
  jump[test] !0
done:
  return !0
}
"""


def cycles_of(lines: str) -> int:
    """Cycles of a function of one block on some variables."""
    text = f"""
global @x 16 8
global @p 24 1
global @d 32 8
global @e 40 8
entry &main
fn &main($n: i16) void {{
start:
{lines}
  return !0
}}
"""
    (block,) = timed(read_module(text), WSE2).functions["main"].blocks
    return sum(sum(one.cycles) for one in block.instructions)


_ADD = """
  %0 = load i16 @x !0
  %1 = load i16 @x+2 !0
  %2 = add i16 %0, %1 !0
  store @x+4, %2 !0
"""


def test_load_load_add_store_takes_seven_cycles() -> None:
    assert cycles_of(_ADD) == 7


def test_independent_instructions_fill_the_waits() -> None:
    other = _ADD.replace("%", "%1").replace("@x", "@d")
    assert cycles_of(_ADD + other) == 9


def test_a_float_operation_that_needs_another_waits_two_cycles() -> None:
    one, chain = "  %0 = load f32 @x !0\n  %1 = add f32 %0, %0 !0\n", ""
    for number in range(1, 4):
        chain += f"  %{number + 1} = mul f32 %{number}, %{number} !0\n"
    first = cycles_of(one + "  store @x, %1 !0\n")
    assert cycles_of(one + chain + "  store @x, %4 !0\n") == first + 3 * 2


def test_what_was_stored_is_not_loaded_again() -> None:
    again = "  %3 = load i16 @x+4 !0\n  store @p, %3 !0\n"
    assert cycles_of(_ADD + again) == 8


def test_a_store_through_a_pointer_makes_loads_necessary_again() -> None:
    twice = "  %0 = load i16 @x !0\n  store @e, %0 !0\n  {}\n"
    twice += "  %2 = load i16 @x !0\n  store @p, %2 !0\n"
    twice += "".join(f"  store @d+{2 * place}, 1:i16 !0\n" for place in range(1, 7))
    through = "%3 = get[n] i16 !0\n  %4 = bitcast ptr %3 !0\n  store %4, 5:i16 !0"
    assert cycles_of(twice.format(through)) > cycles_of(twice.format("store @d, 5:i16 !0"))


def test_only_the_last_store_to_a_variable_is_done() -> None:
    assert cycles_of("  store @x, 1:i16 !0\n  store @x, 2:i16 !0") == 1


def test_what_only_an_assertion_needs_is_free() -> None:
    text = "  %0 = load i16 @x !0\n  %1 = eq bool %0, 0:i16 !0\n  assert %1 !0"
    assert cycles_of(text) == 0


def test_what_is_only_shown_to_the_simulator_is_free() -> None:
    shown = "  %9 = load dsd @d !0\n  show[r1,w2] %9, %9 !0\n"
    assert cycles_of(_ADD + shown) == cycles_of(_ADD)


def test_changing_words_of_a_descriptor_in_place_stores_them() -> None:
    text = """
  %0 = load dsd @d !0
  %1 = dsd_set["1"] dsd %0, 100:u16 !0
  %2 = dsd_set["2"] dsd %1, 7:u16 !0
  %3 = dsd_set["3"] dsd %2, 0:u16 !0
  store @d, %3 !0
"""
    assert cycles_of(text) == 2


@pytest.mark.parametrize(("name", "cycles"), [("", 1), ("  store @d, %2 !0\n", 1 + 4)])
def test_a_descriptor_with_a_name_is_copied_before_its_address_is_stored(
    name: str, cycles: int
) -> None:
    made = '  %2 = dsd_set["1"] dsd dsd(1, 40, 8, 0, 1, 1, 0, 0), %1 !0\n'
    address = "  %0 = get[n] i16 !0\n  %1 = bitcast u16 %0 !0\n"
    assert cycles_of(f"{address}{made}{name}  vector[mov16] %2, 5:u16 !0") == cycles


def test_a_descriptor_stored_elsewhere_is_copied() -> None:
    assert cycles_of("  %0 = load dsd @d !0\n  store @e, %0 !0") == 4


def test_division_by_software_costs_more_than_a_multiplication() -> None:
    text = "  %0 = get[n] i16 !0\n  %1 = {} i16 %0, %0 !0\n  store @x, %1 !0"
    assert (cycles_of(text.format("mul")), cycles_of(text.format("div"))) == (2, 49)


@pytest.mark.parametrize(
    ("kind", "divisor", "cycles"),
    [("u16", 8, 1), ("u32", 8, 2), ("i16", 8, 4), ("u16", 10, 5), ("u32", 10, 18)],
)
def test_a_division_by_a_constant_is_a_shift_or_a_product(
    kind: str, divisor: int, cycles: int
) -> None:
    text = f"  %0 = load {kind} @x !0\n  %1 = div {kind} %0, {divisor}:{kind} !0\n  store @p, %1 !0"
    assert cycles_of(text) == 4 + cycles + 1


def test_the_rest_of_a_division_by_a_constant_takes_another_product() -> None:
    text = "  %0 = load u16 @x !0\n  %1 = rem u16 %0, 10:u16 !0\n  store @p, %1 !0"
    assert cycles_of(text) == 4 + 5 + 2 + 1


def test_a_quotient_and_its_rest_are_one_division() -> None:
    both = "  %0 = get[n] i16 !0\n  %1 = load i16 @p !0\n  %2 = div i16 %0, %1 !0\n"
    rest = "  %3 = rem i16 %0, %1 !0\n  store @x+2, %3 !0\n"
    assert cycles_of(both + "  store @x, %2 !0\n" + rest) == 4 + 48 + 1 + 2 + 1


@pytest.mark.parametrize(
    ("factor", "cycles"), [(4, 1), (5, 2), (10, 3), (7, 2), (14, 3), (-8, 1), (171, 1)]
)
def test_a_product_with_few_bits_is_shifts_and_sums(factor: int, cycles: int) -> None:
    text = f"  %0 = load i16 @x !0\n  %1 = mul i16 %0, {factor}:i16 !0\n  store @p, %1 !0"
    assert cycles_of(text) == 4 + cycles + 1


def test_an_address_needs_the_low_words_of_what_it_is_computed_from() -> None:
    whole = "  %0 = load i32 @x !0\n  %1 = load i32 @x+4 !0\n  %2 = mul i32 %0, %1 !0\n"
    low = whole + "  %3 = cast i16 %2 !0\n  store @p, %3 !0"
    assert cycles_of(low) == cycles_of(whole + "  store @x, %2 !0") - 3


_WAYS = """
global @x 16 2
entry &main
fn &main($n: i16) void {{
start:
  %0 = load i16 @x !0
  %1 = eq bool %0, 1:i16 !0
  branch[one, both] %1 !0
one:
  store {}, 1:i16 !0
  jump[both] !0
both:
  %2 = load i16 @x !0
  %3 = neg i16 %2 !0
  store @x, %3 !0
  return !0
}}
"""


@pytest.mark.parametrize(("stored", "cycles"), [("@x+2", 2), ("@x", 6)])
def test_what_all_ways_to_a_place_know_is_not_loaded_again(stored: str, cycles: int) -> None:
    blocks = timed(read_module(_WAYS.format(stored)), WSE2).functions["main"].blocks
    assert sum(sum(one.cycles) for one in blocks[-1].instructions) == cycles


def test_a_float_division_takes_the_machines_cycles() -> None:
    text = "  %0 = load f32 @x !0\n  %1 = div f32 %0, %0 !0\n  store @x, %1 !0"
    assert cycles_of(text) == 4 + WSE2.timing.divide_cycles + 1


def test_a_copy_takes_a_load_and_a_store_for_each_32_bits() -> None:
    assert cycles_of("  copy @d, @e, 12:u16 !0") == 6


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_loop_costs_its_back_edge_once_an_iteration(count: int) -> None:
    trail = run_native(Native(read_module(_LOOP)), arguments=[count])
    an_iteration = (
        7 + WSE2.timing.loop_cycles - 1
    )  # the counter's step fits into a wait of the body
    assert trail.box[mailbox.CYCLE] == count * an_iteration + 1 + WSE2.timing.branch_cycles[1]


@pytest.mark.parametrize("count", [8, 37, 38])
def test_a_loop_of_few_known_turns_is_written_out(count: int) -> None:
    """Its four instructions a turn, without those of the counter, are at most 150 up to 37."""
    text = _LOOP.replace("head:\n", "head:\n  set[i] 0:i16 !0\n")
    text = text.replace("  %1 = get[n] i16 !0\n", "")
    trail = run_native(
        Native(read_module(text.replace("lt bool %0, %1", f"lt bool %0, {count}:i16")))
    )
    counting = 0 if count < 38 else WSE2.timing.loop_cycles - 1
    begin_and_end = 0 if count < 38 else 1 + WSE2.timing.branch_cycles[1]
    assert trail.box[mailbox.CYCLE] == count * (7 + counting) + begin_and_end


def test_a_stepped_loop_takes_only_its_loads_and_body() -> None:
    stepped = _LOOP.replace("test:", "test: stepped")
    trail = run_native(Native(read_module(stepped)), arguments=[10])
    assert trail.box[mailbox.CYCLE] == 10 * 7


_SWITCH = """
global @x 16 3
entry &main
fn &main($n: i16) void {
start:
  %0 = get[n] i16 !0
  switch[other, one, two] %0, 1:i16, 2:i16 !0
one:
  store @x, 1:i16 !0
  jump[other] !0
two:
  store @x, 2:i16 !0
  jump[other] !0
other:
  return !0
}
"""


def switched(value: int) -> Trail:
    return assert_agrees(_SWITCH, arguments=[value])


def test_a_later_case_of_a_switch_takes_longer() -> None:
    one, two = (int(switched(value).box[mailbox.CYCLE]) for value in (1, 2))
    assert two == one + 1 + WSE2.timing.branch_cycles[0]


def test_interpreter_and_native_code_agree_on_the_default_case() -> None:
    assert switched(9).box[mailbox.CYCLE] == 2 * (1 + WSE2.timing.branch_cycles[0])


def test_what_a_parameter_decides_takes_no_time() -> None:
    text = "  %0 = parameter[0] i16 !0\n  %1 = add i16 %0, 3:i16 !0\n  store @x, %1 !0"
    assert cycles_of(text) == 1


_CHOICE = """
global @x 16 2
entry &main
fn &main($n: i16) void {{
  slot $kept: i16
start:
  %0 = load i16 @x !0
  %1 = get[n] i16 !0
  set[kept] %1 !0
  %2 = lt bool %0, %1 !0
  branch[one, other] %2 !0
one:
  {} !0
  jump[both] !0
other:
  jump[both] !0
both:
  %4 = get[kept] i16 !0
  store @x+2, %4 !0
  return !0
}}
"""


@pytest.mark.parametrize("value", [0, 9])
def test_a_condition_that_chooses_a_value_takes_one_instruction(value: int) -> None:
    trail = assert_agrees(_CHOICE.format("%3 = load i16 @x !0\n  set[kept] %3"), arguments=[value])
    assert trail.box[mailbox.CYCLE] == 4 + 1 + 1 + 1  # load, comparison, choice, store


@pytest.mark.parametrize("value", [0, 9])
def test_a_condition_that_stores_is_a_branch(value: int) -> None:
    trail = assert_agrees(_CHOICE.format("store @x, 5:i16"), arguments=[value])
    assert trail.box[mailbox.CYCLE] > 4 + 1 + 1 + min(WSE2.timing.branch_cycles)


def test_a_condition_before_many_instructions_is_a_branch_around_them() -> None:
    first, *others = range(3, 16)
    adds = [f"%{n} = add i16 %{n - 1}, 3:i16" for n in others]
    lines = [f"%{first} = load i16 @x", *adds, "set[kept] %15"]
    text = _CHOICE.replace("%4", "%16").format(" !0\n  ".join(lines))
    there, around = (int(assert_agrees(text, arguments=[n]).box[mailbox.CYCLE]) for n in (9, 0))
    passed, taken = WSE2.timing.branch_cycles
    assert there - around == len(adds) + passed - taken


_COPY_AND_LOAD = """
entry &main
fn &main() void {{
head:
  vector[mov16] dsd(1, 40, 8, 0, 1, 1, 0, 0), dsd(1, 60, 8, 0, 1, 1, 0, 0) !0
  {} !0
  return !0
}}
"""


@pytest.mark.parametrize(
    ("line", "waits"), [("%1 = load i16 80:ptr", True), ("store 80:ptr, 1:i16", False)]
)
def test_a_load_waits_for_the_results_of_a_vector_operation(line: str, *, waits: bool) -> None:
    drains = [
        one.op
        for block in timed(read_module(_COPY_AND_LOAD.format(line)), WSE2).functions["main"].blocks
        for one in block.instructions
    ]
    assert ("drain" in drains) is waits
