"""Code counts what it passes: the counters account for every cycle of the main thread."""

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import WSE2
from openwafer.sdk.codegen.objects import Effort
from openwafer.sdk.ir.checks import Accesses, Depth, checked
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.ir.counters import counters_of, is_awaited
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.order import Reach, ordered
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program import mailbox
from tests.sdk.codegen.generated import random_module
from tests.sdk.codegen.oracle import Native, Trail, read_module, run_interpreter, run_native
from tests.tables import case

Counts = NDArray[np.int64]
_Runs = Callable[..., Trail]


def counted(run: _Runs, module: Module, argument: int = 7) -> tuple[Counts, Trail]:
    """The counters behind a run of the first entry, and what else it left."""
    # Before them are those of kinds of operations.
    all_counts = np.zeros(mailbox.KIND_COUNTS + len(list(counters_of(module, WSE2))), np.int64)
    counts = all_counts[mailbox.KIND_COUNTS :]
    box = {mailbox.COUNTS: counts.ctypes.data}
    return counts, run(arguments=[argument], box=box)


def both_ways(module: Module, argument: int = 7) -> tuple[Counts, Trail]:
    """Counters that native code and the interpreter agree on."""
    native = Native(module, effort=Effort.NONE, counts=True)
    counts, trail = counted(lambda **given: run_native(native, **given), module, argument)
    oracle, _ = counted(lambda **given: run_interpreter(module, **given), module, argument)
    assert counts.tolist() == oracle.tolist()
    return counts, trail


def accounted(module: Module, counts: Counts) -> int:
    """Cycles that the counters account for."""
    total = 0
    for counter, count in zip(counters_of(module, WSE2), counts.tolist(), strict=True):
        cycles = sum(share.taken + share.waited for share in counter.shares)
        total += count * (1 if counter.is_in_cycles else cycles)
    return total


@pytest.mark.parametrize("seed", [case(seed, by_default=seed < 2) for seed in range(10)])
def test_counters_account_for_every_cycle_of_a_run(seed: int) -> None:
    module = random_module(Random(seed))
    verify(module)
    counts, trail = both_ways(module)
    assert accounted(module, counts) == trail.box[mailbox.CYCLE] > 0


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


@pytest.mark.parametrize(("value", "passed"), [(1, [0, 1, 0]), (2, [0, 0, 1]), (9, [1, 0, 0])])
def test_each_target_of_a_switch_has_a_counter(value: int, passed: list[int]) -> None:
    module = read_module(_SWITCH)
    counts, trail = both_ways(module, value)
    assert counts[:3].tolist() == passed
    assert accounted(module, counts) == trail.box[mailbox.CYCLE]


_TRAP = """
global @x 16 3
entry &main
fn &main($n: i16) void {
start:
  call[f] !0
  %0 = get[n] i16 !0
  %1 = eq bool %0, 0:i16 !0
  store @x, 1:i16 !0
  call[f] !0
  assert %1 !0
  store @x, 2:i16 !0
  return !0
}
fn &f() void {
start:
  %0 = load i16 @x !0
  store @x+2, %0 !0
  return !0
}
"""


def test_what_stops_before_its_end_has_counted_up_to_there() -> None:
    module = read_module(_TRAP)
    counts, trail = both_ways(module)
    assert accounted(module, counts) == trail.box[mailbox.CYCLE] > 0


def counters_in_order(module: Module) -> Iterator[int | str]:
    """Cycles that pass, and operations that are awaited, in the order of the code."""
    for function in module.functions.values():
        for one in function.instructions:
            yield from one.cycles if any(one.cycles) else ()
            yield from (one.op,) if is_awaited(one) else ()


@pytest.mark.parametrize("seed", range(10))
def test_passes_behind_the_count_of_time_keep_the_order_of_counters(seed: int) -> None:
    module = timed(random_module(Random(seed)), WSE2)
    changed = checked(ordered(module, Reach(is_asynchronous=True)), Accesses(Depth.WRAPS))
    assert [*counters_in_order(changed)] == [*counters_in_order(module)]


def test_code_that_does_not_count_leaves_the_counters_alone() -> None:
    module = read_module(_SWITCH)
    native = Native(module, effort=Effort.NONE)
    counts, _ = counted(lambda **given: run_native(native, **given), module)
    assert not counts.any()
