"""A program written by hand: 2 by 2 PEs with an array, a function and an echo of a stream."""

from dataclasses import replace

import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind
from openwafer.sdk.program.image import Entry, Image, QueueBinding, Symbol, TaskBinding, TaskKind
from openwafer.sdk.program.program import HostName, Program

CODE = """\
module "pe.csl" stack 64 memory 24576
place "pe.csl" 1 1 "scale"
global @A 16 4
global @ptr_A 20 1 = 16
global @flags 21 1
entry &scale
entry &echo
fn &scale($k: f32) void {
head:
  %0 = load f32 @A !0
  %1 = get[k] f32 !0
  %2 = mul f32 %0, %1 !0
  store @A, %2 !0
  open_stream !0
  return !0
}
fn &echo($word: u32) void {
head:
  %0 = get[word] u32 !0
  vector[mov32,fabric] dsd(3, 6, 1, 0, 2, 2, 0, 0), %0 !0
  return !0
}
"""

IMAGE = Image(
    name="pe.csl",
    code=CODE,
    data=np.array([0] * 20 + [32, 7 | 9 << 8], np.uint16).tobytes(),
    stack_base=64,
    code_words=20,
    symbols=(
        Symbol("A", 16, 4, "f32", (2,)),
        Symbol("ptr_A", 20, 1, "[*]f32"),
        Symbol("flags", 21, 1, "u8", (2,)),
    ),
    entries=(Entry("scale", ("f32",)), Entry("echo", ("u32",))),
    tasks=(TaskBinding(TaskKind.DATA, 5, 1),),
    queues=(QueueBinding(True, 2, 5),),
    exported_symbols=(("A", "ptr_A"),),
    exported_functions=(("scale", 0),),
)
PROGRAM = Program(
    arch=Arch.WSE2,
    fabric=(9, 4),
    offset=(4, 1),
    images=(IMAGE,),
    image_of=np.zeros((2, 2), np.int32),
    parameters=np.zeros((2, 2, 0), np.int64),
    routes=((),),
    routes_of=np.zeros((2, 2), np.int32),
    host_names=(
        HostName(1, "A", "[*]f32", is_mutable=True),
        HostName(2, "scale", "void", inputs=(("k", "f32"),)),
    ),
    streams=(("MEMCPYH2D_1", 5), ("MEMCPYD2H_1", 6)),
    channels=1,
)
WITHOUT_MEMCPY = replace(PROGRAM, channels=0)


def running(kind: EngineKind = EngineKind.NATIVE) -> Runtime:
    """Return a runtime of the program that runs and writes no logs."""
    runtime = Runtime(PROGRAM, RuntimeOptions(engine=kind, log_folder=None))
    runtime.load()
    runtime.run()
    return runtime
