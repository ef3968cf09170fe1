"""Compiled control flow, calls, memory and the PE's own state equal the interpreter's."""

import numpy as np
import pytest

from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Trap
from tests.sdk.codegen.oracle import Native, Trail, assert_agrees, read_module, run_native

_ONE_LINE = "entry &main\nfn &main() void {{\nhead:\n  {}\n  return !0\n}}"
_SUM = """
global @x 16 8
entry &main
fn &main($n: i16) void {
  slot $i: i16
  slot $sum: i32
head:
  jump[test] !0
test:
  %0 = get[i] i16 !0
  %1 = get[n] i16 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body: loop_end
  %3 = get[i] i16 !0
  %4 = cast i32 %3 !0
  %5 = get[sum] i32 !0
  %6 = add i32 %5, %4 !0
  set[sum] %6 !0
  %7 = add i16 %3, 1:i16 !0
  set[i] %7 !0
  jump[test] !0
done:
  %8 = get[sum] i32 !0
  store @x, %8 !0
  return !0
}
"""


def test_a_loop_sums() -> None:
    trail = assert_agrees(_SUM, arguments=[1000])
    assert trail.outcomes == [Outcome.FINISHED]
    assert trail.data[16:18].view(np.int32)[0] == 499500


_SWITCH = """
global @x 16 1
entry &main
fn &main($n: u16) void {
head:
  %0 = get[n] u16 !0
  switch[other, one, seven] %0, 1:u16, 7:u16 !0
one:
  store @x, 10:u16 !0
  return !0
seven:
  store @x, 70:u16 !0
  return !0
other:
  store @x, 90:u16 !0
  return !0
}
"""


@pytest.mark.parametrize("value", [0, 1, 7, 65535])
def test_a_switch_goes_to_the_equal_constant(value: int) -> None:
    assert_agrees(_SWITCH, arguments=[value])


def test_recursion_ends_with_a_stack_overflow() -> None:
    text = """
entry &main
fn &main() void {
head:
  call[main] !0
  return !0
}
"""
    trail = run_native(Native(read_module(text)))
    assert trail.outcomes == [Outcome.TRAPPED]
    assert trail.box[mailbox.TRAP] == Trap.STACK_OVERFLOW


_INDIRECT = """
global @x 16 1
entry &main
fn &main($f: fn) void {
head:
  %0 = get[f] fn !0
  %1 = call_indirect u16 %0, 5:u16 !0
  store @x, %1 !0
  return !0
}
fn &twice($a: u16) u16 {
head:
  %0 = get[a] u16 !0
  %1 = add u16 %0, %0 !0
  return %1 !0
}
fn &square($a: u16) u16 {
head:
  %0 = get[a] u16 !0
  %1 = mul u16 %0, %0 !0
  return %1 !0
}
"""


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_indirect_call_finds_its_function(number: int) -> None:
    if number == 0:
        trail = run_native(Native(read_module(_INDIRECT)), arguments=[number])
        assert trail.box[mailbox.TRAP] == Trap.UNREACHABLE
    else:
        assert_agrees(_INDIRECT, arguments=[number])


# It takes seconds to its last cycle: by default one program does, in test_cycles_of_traps.
@pytest.mark.slow
def test_an_endless_loop_is_stopped() -> None:
    text = "entry &main\nfn &main() void {\nhead: loop_end\n  jump[head] !3\n}"
    trail = run_native(Native(read_module(text)))
    assert trail.outcomes == [Outcome.TRAPPED]
    assert (trail.box[mailbox.TRAP], trail.box[mailbox.PLACE]) == (Trap.ENDLESS_LOOP, 3)


def _access(address: int, body: str) -> Trail:
    text = f"""
entry &main
fn &main($p: ptr) void {{
head:
  %0 = get[p] ptr !0
  {body}
  return !0
}}
"""
    return assert_agrees(text, arguments=[address])


@pytest.mark.parametrize("word", [0, 24574, 24575, 24576, 32767])
def test_a_load_or_store_outside_of_memory_traps_with_its_word(word: int) -> None:
    trail = _access(2 * word, "%1 = load i32 %0 !0\n  store %0, %1 !0")
    fits = word <= 24574
    assert trail.outcomes == [Outcome.FINISHED if fits else Outcome.TRAPPED]
    assert trail.box[mailbox.TRAP_VALUE] == (0 if fits else word)


@pytest.mark.parametrize("address", [1, 49149, 49151, 65535])
def test_a_number_of_whole_words_at_an_odd_address_traps(address: int) -> None:
    trail = _access(address, "%1 = load i16 %0 !0")
    assert trail.box[mailbox.TRAP] == Trap.MISALIGNED
    assert trail.box[mailbox.TRAP_VALUE] == address


@pytest.mark.parametrize("address", [0, 1, 49151, 49152, 65535])
def test_bytes_are_loaded_and_stored_by_themselves(address: int) -> None:
    body = """%1 = load u8 %0 !0
  %2 = add u8 %1, 7:u8 !0
  store %0, %2 !0
  %3 = byte_add ptr %0, -1:i16 !0
  store %3, 1:bool !0"""
    trail = _access(address, body)
    assert trail.outcomes == [Outcome.FINISHED if 0 < address < 49152 else Outcome.TRAPPED]


_COPIES = """
global @x 100 8 = 1 2 3 4 5 6 7 8
entry &main
fn &main($p: ptr) void {
head:
  %0 = get[p] ptr !0
  copy %0, @x, 16:u16 !0
  copy @x+6, @x, 10:u16 !0
  copy @x, %0, 17:u16 !0
  return !0
}
"""


@pytest.mark.parametrize("address", [0, 180, 181, 49135, 49136])
def test_a_copy_may_overlap_and_stays_in_memory(address: int) -> None:
    memory = np.zeros(200, np.uint16)
    memory[100:108] = range(1, 9)
    assert_agrees(_COPIES, arguments=[address], memory=memory)


def test_a_failed_assertion_traps_at_its_line() -> None:
    trail = assert_agrees(_ONE_LINE.format("assert 0:bool !7"))
    assert trail.box[mailbox.TRAP] == Trap.ASSERTION
    assert trail.box[mailbox.PLACE] == 7


_PLACE = """
global @x 16 16
entry &main
fn &main() void {
head:
  %0 = coordinate[x] u16 !0
  store @x, %0 !0
  %1 = coordinate[fabric_y] u16 !0
  store @x+2, %1 !0
  %2 = parameter[0] i16 !0
  store @x+4, %2 !0
  %3 = parameter[1] f32 !0
  store @x+6, %3 !0
  %4 = random u16 !0
  store @x+10, %4 !0
  seed_random 77:u32 !0
  %5 = random u16 !0
  store @x+12, %5 !0
  open_stream !0
  return !0
}
"""


def test_the_pe_knows_its_place_parameters_and_random_numbers() -> None:
    record = np.array([-5, 0x3FC00000], np.int64)
    place = 3 | 9 << mailbox.Y_SHIFT + mailbox.FABRIC_SHIFT
    box = {mailbox.COORDINATES: place, mailbox.PARAMS: record.ctypes.data}
    trail = assert_agrees(_PLACE, box=box)
    assert list(trail.data[16:21]) == [3, 9, 65531, 0, 0x3FC0]


_SCHEDULE = """
entry &main
fn &main($t: u16) void {
head:
  %0 = get[t] u16 !0
  block %0 !0
  activate 40:u16 !0
  block 258:u16 !0
  unblock 258:u16 !0
  block 3:u16 !0
  unblock 3:u16 !0
  return !0
}
"""


@pytest.mark.parametrize("target", [5, 63, 256, 263, 512, 519])
def test_tasks_queues_and_microthreads_block_and_unblock(target: int) -> None:
    assert_agrees(_SCHEDULE, arguments=[target], box={mailbox.ACTIVE: 1, mailbox.BLOCKED: 8})


@pytest.mark.parametrize("is_on", [0, 1])
@pytest.mark.parametrize("action", ["enable", "disable", "reset"])
def test_the_timestamp_counter_is_enabled_disabled_and_reset(action: str, is_on: int) -> None:
    text = _ONE_LINE.format(f"timestamp_control[{action}] !0")
    box = {
        mailbox.CYCLE: 1000,
        mailbox.TIMESTAMP_BASE: 300,
        mailbox.TIMESTAMP_IS_ON: is_on,
    }
    # The instruction takes a cycle in native code, the interpreter counts none.
    native = run_native(Native(read_module(text)), box=box)
    expected = {
        ("enable", 0): 1000 - 300,
        ("disable", 1): 1000 - 300,
        ("reset", 1): 1000,
        ("reset", 0): 0,
    }.get((action, is_on), 300)
    assert native.box[mailbox.TIMESTAMP_BASE] == expected


_DESCRIPTOR = """
global @x 16 8
entry &main
fn &main($n: u16) void {
  slot $d: dsd
head:
  %0 = get[n] u16 !0
  %1 = dsd_set[2] dsd dsd(1, 100, 4, 0, 1, 1, 0, 0), %0 !0
  set[d] %1 !0
  %2 = get[d] dsd !0
  %3 = dsd_get[2] u16 %2 !0
  store @x, %2 !0
  %4 = load dsd @x !0
  store @x, %4 !0
  return !0
}
"""


def test_descriptors_are_built_word_by_word() -> None:
    trail = assert_agrees(_DESCRIPTOR, arguments=[77])
    assert list(trail.data[16:24]) == [1, 100, 77, 0, 1, 1, 0, 0]


_SPLIT = """
global @x 16 2
entry &main
fn &main($a: i16, $b: u16) void {
head:
  %0 = get[a] i16 !0
  store @x, %0 !0
  %1 = get[b] u16 !0
  store @x+2, %1 !0
  return !0
}
"""


def test_a_wavelet_is_split_over_the_parameters() -> None:
    native = Native(read_module(_SPLIT), splits=(True,))
    assert list(run_native(native, arguments=[0x1234ABCD]).data[16:18]) == [0xABCD, 0x1234]


def test_an_unknown_image_entry_traps() -> None:
    trail = Trail()
    outcome = Native(read_module(_SUM)).step(trail, 9, is_resume=False)
    assert outcome is Outcome.TRAPPED
    assert trail.box[mailbox.TRAP] == Trap.UNREACHABLE
