"""How long PE code takes to compile, and how fast it runs.

The compiled module stands for 1,000 lines of CSL: functions of arithmetic, loops, memory and
vector operations, about one IR instruction in three to a line of source; once more with an
asynchronous operation on their array, so that code must keep to the order of cycles. The running
times are those of a hash loop of nine operations, and of a sum over an array that an asynchronous
operation of the image leaves alone, or moves.

    python benchmarks/bench_codegen.py
"""

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np

from openwafer.sdk.arch.generation import WSE2, Arch
from openwafer.sdk.codegen.modules import ImageKind, module_text
from openwafer.sdk.codegen.native import compile_modules
from openwafer.sdk.codegen.objects import Effort, compile_text, this_host
from openwafer.sdk.codegen.sharing import program_text
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.text import parse
from openwafer.sdk.program import mailbox

_HEADER = 'module "bench" stack 20000 memory 24576\nglobal @x 0 4000\n'
_HASH = """
entry &main
fn &main($n: u32) void {
  slot $i: u32
  slot $h: u32
head:
  set[h] 1:u32 !0
  jump[test] !0
test:
  %0 = get[i] u32 !0
  %1 = get[n] u32 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body: loop_end
  %3 = get[h] u32 !0
  %4 = get[i] u32 !0
  %5 = shl u32 %3, 5:u16 !0
  %6 = shr u32 %3, 27:u16 !0
  %7 = or u32 %5, %6 !0
  %8 = xor u32 %7, %4 !0
  %9 = mul u32 %8, 2654435769:u32 !0
  set[h] %9 !0
  %10 = add u32 %4, 1:u32 !0
  set[i] %10 !0
  jump[test] !0
done:
  %11 = get[h] u32 !0
  store @x, %11 !0
  return !0
}
"""
_SUM = """
global @sent 4000 40
global @y 4040 2
entry &main
fn &main($n: u32) void {
  slot $i: u32
  slot $sum: f32
head:
  %0 = get[n] u32 !0
  %1 = eq bool %0, 0:u32 !0
  branch[sends, test] %1 !0
sends:
  vector[fmovs, fabric, async] dsd(3, 5, 9, 0, 2, 2, 0, 0), dsd(1, BASE, 9, 0, 2, 2, 0, 0) !0
  jump[test] !0
test:
  %2 = get[i] u32 !0
  %3 = get[n] u32 !0
  %4 = lt bool %2, %3 !0
  branch[body, done] %4 !0
body: loop_end
  %5 = get[i] u32 !0
  %6 = and u32 %5, 1023:u32 !0
  %7 = cast u16 %6 !0
  %8 = ptr_add ptr @x, %7 !0
  %9 = load f32 %8 !0
  %10 = get[sum] f32 !0
  %11 = add f32 %10, %9 !0
  set[sum] %11 !0
  %12 = add u32 %5, 1:u32 !0
  set[i] %12 !0
  jump[test] !0
done:
  %13 = get[sum] f32 !0
  store @y, %13 !0
  return !0
}
"""
_LINES_OF_A_FUNCTION = 20
_FUNCTION = """
fn &f{n}($a: i16, $v: f32) f32 {{
  slot $i: i16
  slot $sum: f32
  slot $local: 4 words
head:
  jump[test] !0
test:
  %0 = get[i] i16 !0
  %1 = get[a] i16 !0
  %2 = lt bool %0, %1 !0
  branch[body, done] %2 !0
body:
  %3 = get[i] i16 !0
  %4 = mul i16 %3, 2:i16 !0
  %5 = ptr_add ptr @x+{n}, %4 !0
  %6 = load f32 %5 !0
  %7 = get[v] f32 !0
  %8 = mul f32 %6, %7 !0
  %9 = get[sum] f32 !0
  %10 = add f32 %9, %8 !0
  set[sum] %10 !0
  store %5, %10 !0
  %11 = gt bool %10, 1077936128:f32 !0
  branch[big, small] %11 !0
big:
  %12 = slot_address[local] ptr !0
  %13 = get[i] i16 !0
  store %12, %13 !0
  %14 = cast f16 %13 !0
  store @x+100, %14 !0
  jump[step] !0
small:
  %15 = get[i] i16 !0
  %16 = div i16 %15, 3:i16 !0
  store @x+101, %16 !0
  jump[step] !0
step: loop_end
  %17 = get[i] i16 !0
  %18 = add i16 %17, 1:i16 !0
  set[i] %18 !0
  jump[test] !0
done:
  vector[fmacs] dsd(1, 0, 20, 0, 2, 2, 0, 0), dsd(1, 0, 20, 0, 2, 2, 0, 0),
    dsd(1, 100, 20, 0, 2, 2, 0, 0), 1065353216:f32 !0
  {request}
  %20 = get[sum] f32 !0
  return %20 !0
}}
"""
_ASYNC = "vector[fmovs, fabric, async] dsd(3, 5, 9, 0, 2, 2, 0, 0), dsd(1, 0, 9, 0, 2, 2, 0, 0) !0"
_REQUEST = "vector[fmovs, fabric] dsd(3, 5, 9, 0, 2, 2, 0, 0), dsd(1, 0, 9, 0, 2, 2, 0, 0) !0"


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Shortest time of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _thousand_lines(request: str) -> Module:
    count = 1000 // _LINES_OF_A_FUNCTION
    functions = [_FUNCTION.format(n=n, request=request if n % 4 == 0 else "") for n in range(count)]
    calls = "\n".join(
        f"  %{n} = call[f{n}] f32 {n + 1}:i16, 1065353216:f32 !0" for n in range(count)
    )
    main = f"entry &main\nfn &main() void {{\nhead:\n{calls}\n  return !0\n}}"
    return parse(_HEADER + main + "".join(functions))


def compile_times(name: str, request: str, repeats: int) -> None:
    """Print the time of each stage."""
    module, host = _thousand_lines(request), this_host()
    num_instructions = sum(
        len(block.instructions) for one in module.functions.values() for block in one.blocks
    )
    text = program_text([module_text(module, ImageKind((False,)), WSE2, has_f16=host.has_f16)])
    whole = text.straight + text.loops
    num_lines = whole.count("\n")
    print(f"1,000 lines, {name}: {num_instructions} instructions, {num_lines} lines of LLVM text")
    seconds = _seconds(
        lambda: module_text(module, ImageKind((False,)), WSE2, has_f16=host.has_f16), repeats
    )
    print(f"writing the text          {1e3 * seconds:8.1f} ms")
    for effort in Effort:
        seconds = _seconds(lambda spent=effort: compile_text(text.loops, host, spent), repeats)
        print(f"LLVM, effort {effort.name:12s} {1e3 * seconds:8.1f} ms")


def loop(name: str, text: str, repeats: int, iterations: int = 10_000_000) -> None:
    """Print the time of an iteration."""
    module = parse(_HEADER + text)
    for effort in Effort:
        code = compile_modules([module], [(False,)], Arch.WSE2, effort=effort)
        kinds = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)
        run = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(code.run_address)
        box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
        box[mailbox.ARGUMENTS] = iterations
        memory = np.zeros(24576, np.uint16)
        pointers = box.ctypes.data, memory.ctypes.data
        seconds = _seconds(lambda fn=run, at=pointers: fn(0, *at, 0, 0), repeats)
        print(f"{name}, effort {effort.name:7s} {1e9 * seconds / iterations:8.2f} ns an iteration")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    compile_times("synchronous", _REQUEST, options.repeats)
    compile_times("asynchronous", _ASYNC, options.repeats)
    loop("hash loop", _HASH, options.repeats)
    loop("sum, other array moved", _SUM.replace("BASE", "4000"), options.repeats)
    loop("sum, array moved", _SUM.replace("BASE", "0"), options.repeats)


if __name__ == "__main__":
    main()
