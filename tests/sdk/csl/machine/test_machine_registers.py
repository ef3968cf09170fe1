"""Config registers through pointers that code makes of integers, as old programs do."""

from pathlib import Path

from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome, Request
from tests.sdk.csl.machine.one_pe import Pe, ran

COPY = """
export var copied: u16 = 0;
var address: u16 = ADDRESS;
fn main() void { copied = @bitcast(*u16, address).*; }
"""


def test_a_pointer_past_memory_reads_the_register_at_half_its_bytes(tmp_path: Path) -> None:
    pe = Pe(tmp_path, COPY.replace("ADDRESS", "0xfe8e"))
    assert pe.start() is Outcome.SUSPENDED
    assert pe.box[mailbox.REQUEST] == Request.READ_REGISTER
    assert pe.box[mailbox.OPERATION] == 0x7F47
    pe.box[mailbox.RESULT] = 77
    assert pe.resume() is Outcome.FINISHED
    assert pe.read("copied", "u2").tolist() == [77]


def test_a_pointer_into_memory_still_reads_memory(tmp_path: Path) -> None:
    source = """
export var word: u16 = 5;
export var copied: u16 = 0;
fn main() void {
  var pointer: *u16 = &word;
  var bits = @bitcast(u16, pointer);
  copied = @bitcast(*u16, bits).*;
  @bitcast(*u16, bits).* = 9;
}
"""
    pe = ran(tmp_path, source)
    assert (pe.read("copied", "u2").tolist(), pe.read("word", "u2").tolist()) == ([5], [9])


CHOSEN = """
const first: *u16 = @bitcast(*u16, @as(u16, 0xfe80));
const second: *u16 = @bitcast(*u16, @as(u16, 0xfe90));
var is_first: bool = false;
fn main() void { (if (is_first) first else second).* = 7; }
"""


def test_a_register_may_be_chosen_at_run_time(tmp_path: Path) -> None:
    pe = Pe(tmp_path, CHOSEN)
    assert pe.start() is Outcome.SUSPENDED
    assert pe.box[mailbox.REQUEST] == Request.WRITE_REGISTER
    assert pe.box[mailbox.OPERATION] == 0x7F48
