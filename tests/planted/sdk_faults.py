"""Faults of the wafer SDK."""

from typing import Final

from tests.planted.fault import Fault

SDK_FAULTS: Final = (
    Fault(
        "implicit-cast",
        "an unsigned integer becomes a signed one of its width without a cast",
        "sdk/csl/sema/coercion.py",
        "return want.holds(have.lowest) and want.holds(have.highest)",
        "return have.num_bits <= want.num_bits",
        (
            "csl",
            "sdk/csl/sema",
            "sdk/csl",
        ),
    ),
    Fault(
        "comptime-overflow",
        "nobody is warned of a product at compile time that its type cuts",
        "sdk/csl/sema/fold.py",
        '_GROWING: Final = frozenset(("add", "sub", "mul"))',
        '_GROWING: Final = frozenset(("add", "sub"))',
        (
            "csl",
            "sdk/csl/sema",
            "sdk/csl",
        ),
    ),
    Fault(
        "switch-position",
        "a switch position has what it does not change from the first position",
        "sdk/fabric/route.py",
        "before = (word >> (10 * (number - 1))) & kept",
        "before = word & kept",
        (
            "sdk/fabric/test_fabric_switches.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "fork-of-bands",
        "a wavelet that crosses into the band in the east is dropped",
        "sdk/fabric/router.py",
        "for direction in range(2):\n        other = queues.neighbour",
        "for direction in range(1):\n        other = queues.neighbour",
        (
            "sdk/fabric/test_fabric_threads.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "swapped-color",
        "traffic from the south swaps its colors as that from east and west",
        "sdk/fabric/router.py",
        "route.SWAP_X_BIT if direction < 2 else",
        "route.SWAP_X_BIT if direction <= 2 else",
        (
            "sdk/fabric/test_fabric_switches.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "full-queue",
        "a queue that is full takes one more wavelet, over its first one",
        "sdk/fabric/queues.py",
        "queue) < s[w.G_DEPTHS + queue]",
        "queue) <= s[w.G_DEPTHS + queue]",
        (
            "sdk/fabric/test_fabric_networks.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "task-priority",
        "tasks of high priority come behind the others",
        "sdk/fabric/processor.py",
        "or is_high(s, pe, place):",
        "or not is_high(s, pe, place):",
        (
            "sdk/fabric/test_fabric_tasks.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "blocked-task",
        "an active task starts though it is blocked, beside one that is not",
        "sdk/fabric/processor.py",
        "runnable = s[mailbox_row(pe) + mb.ACTIVE] & ~s[mailbox_row(pe) + mb.BLOCKED]",
        "runnable = s[mailbox_row(pe) + mb.ACTIVE]",
        (
            "sdk/fabric/test_fabric_tasks.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "microthread-clock",
        "the main thread goes on a cycle early behind the start of a microthread",
        "sdk/fabric/thread.py",
        "issue + int(slot < w.MAIN_SLOT)",
        "issue",
        (
            "sdk/fabric/test_fabric_microthreads.py",
            "sdk/timing",
            "sdk/fabric",
        ),
    ),
    Fault(
        "circular-stride",
        "a circular buffer goes back one element too far",
        "sdk/fabric/operand.py",
        "-(around - 1) * element",
        "-around * element",
        (
            "sdk/builtins/test_machine_builtins.py",
            "sdk/fabric",
            "sdk/csl/machine",
        ),
    ),
    Fault(
        "fifo-room",
        "a FIFO is full with one element less than it has room for",
        "sdk/fabric/fifo.py",
        "s[row + w.F_COUNT] + num <= s[row + w.F_ELEMENTS]",
        "s[row + w.F_COUNT] + num < s[row + w.F_ELEMENTS]",
        (
            "sdk/fabric/test_fabric_vectors.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "filter-counter",
        "a counting filter starts again one wavelet early",
        "sdk/fabric/control.py",
        "if s[row + w.L_COUNTER] <= s[row + w.L_LIMIT1]:",
        "if s[row + w.L_COUNTER] < s[row + w.L_LIMIT1]:",
        (
            "sdk/fabric/test_fabric_switches.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "snapshot",
        "a snapshot has no list of the processors that are awake",
        "sdk/fabric/snapshots.py",
        '"core_list": (state[w.G_CORES],),',
        '"core_list": (0,),',
        (
            "sdk/fabric/test_snapshots.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "swapped-banks",
        "reads meet by the banks of writes, and writes by the ports of reads",
        "sdk/arch/pace.py",
        "NUM_BANKS if is_written else READ_PORTS",
        "READ_PORTS if is_written else NUM_BANKS",
        (
            "sdk/arch",
            "sdk/codegen/test_timing.py",
            "sdk/timing",
        ),
    ),
    Fault(
        "f16-rounding",
        "a wide result is rounded twice on its way to f16",
        "sdk/codegen/floats.py",
        "call float @round_to_odd(double {value})",
        "fptrunc double {value} to float",
        (
            "sdk/codegen/test_scalars.py",
            "sdk/codegen",
        ),
    ),
    Fault(
        "shift-by-width",
        "compiled code shifts by the width of a type as the machine below happens to",
        "sdk/codegen/scalars.py",
        "icmp uge i16 {amount}, {width}",
        "icmp ugt i16 {amount}, {width}",
        (
            "sdk/codegen/test_scalars.py",
            "sdk/codegen",
        ),
    ),
    Fault(
        "elements-in-place",
        "an operation on memory takes its elements from the last one to the first",
        "sdk/ir/vectors.py",
        "    for index in range(length):\n        for place, (_, bits)",
        "    for index in range(length)[:: -1 if isinstance(target, tuple) else 1]:\n"
        "        for place, (_, bits)",
        (
            "sdk/codegen/test_vectors.py",
            "sdk/codegen",
        ),
    ),
    Fault(
        "memcpy-order",
        "row and column order of the host's tensors are each other's",
        "sdk/host/tensors.py",
        '{Order.ROW_MAJOR: "C", Order.COL_MAJOR: "F"}',
        '{Order.ROW_MAJOR: "F", Order.COL_MAJOR: "C"}',
        (
            "sdk/host/test_tensors.py",
            "sdk/host",
            "sdk/compat",
        ),
    ),
    Fault(
        "unwritten-copy",
        "a variable that takes a copy of what nothing wrote counts as written",
        "sdk/ir/unwritten.py",
        "if one.initial) - copied",
        "if one.initial)",
        (
            "sdk/reports",
            "sdk/order",
            "sdk/csl/machine",
        ),
    ),
    Fault(
        "empty-row",
        "a row without non-zeros has the sum of another",
        "sdk/kernels/sparse_tiles.py",
        "found[self.part < 0] = 0",
        "found[self.part < -1] = 0",
        ("sdk/kernels/test_spmv.py", "sdk/kernels"),
    ),
    Fault(
        "error-position",
        "carets below a mistake count characters where a tab or a wide letter takes more",
        "diagnostics.py",
        "_cells(text[:end]) - _cells(text[:start])",
        "end - start",
        (
            "ground",
            "sdk/csl/syntax",
        ),
    ),
    Fault(
        "counted-loop",
        "a variable that a loop of the layout counts is as it was behind it",
        "sdk/csl/sema/loops_in_lanes.py",
        "cell.content = end if is_done else start",
        "cell.content = start",
        (
            "sdk/csl/layout/test_layout_together.py",
            "sdk/csl/layout",
        ),
    ),
    Fault(
        "fifo-wakes",
        "a pop behind a writer that found no space wakes nobody",
        "sdk/fabric/fifo.py",
        "    s[row + w.F_WAS_FULL] = 1\n",
        "",
        (
            "sdk/fabric/test_fabric_vectors.py",
            "sdk/fabric",
        ),
    ),
    Fault(
        "open-task",
        "a task that is blocked from the start is not",
        "sdk/csl/sema/builtins/machine/tasks.py",
        '= call.name.text == "block"',
        "= False",
        (
            "sdk/csl/machine/test_machine_tasks.py",
            "sdk/csl/machine",
        ),
    ),
    Fault(
        "negative-stride",
        "the last address of a descriptor that goes back is one element too far",
        "sdk/codegen/vectors.py",
        '    way = body.value(f"mul i64 {steps}, {dsd.stride}")\n',
        '    is_back = body.value(f"icmp slt i64 {dsd.stride}, 0")\n'
        '    steps = body.select(is_back, "i64", length, steps)\n'
        '    way = body.value(f"mul i64 {steps}, {dsd.stride}")\n',
        (
            "sdk/codegen/test_vectors.py",
            "sdk/codegen",
        ),
    ),
    Fault(
        "half-sums",
        "arrays of f16 have sums of f16, too",
        "sdk/kernels/precision.py",
        "np.dtype(np.float16): Precision.F16_F32,",
        "np.dtype(np.float16): Precision.F16,",
        (
            "sdk/kernels/test_operands.py",
            "sdk/kernels",
        ),
    ),
    Fault(
        "long-choice",
        "the cost of a condition is that of a choice, however much its ways compute",
        "sdk/ir/diamonds.py",
        "return len(others) <= _MOST_INSTRUCTIONS and ops",
        "return ops",
        (
            "sdk/codegen/test_timing.py",
            "sdk/codegen",
        ),
    ),
    Fault(
        "padded-tokens",
        "the plan of an embedding leaves out the tokens that are padded",
        "sdk/kernels/embeddings.py",
        "counts * own + (tokens - counts) * (padded + of_padded + turn)",
        "counts * own",
        (
            "sdk/kernels/test_embeddings.py",
            "sdk/kernels",
        ),
    ),
    Fault(
        "last-column",
        "the plan of a scan begins with the first column of PEs, not with the last",
        "sdk/kernels/scanning.py",
        "taken, way = start_delay(self.columns, self.arch), ",
        "taken, way = 0, ",
        (
            "sdk/kernels/test_scanning.py",
            "sdk/kernels",
        ),
    ),
    Fault(
        "last-tree",
        "the tree of a line of one row is chosen as if a sum of columns came behind it",
        "sdk/kernels/collectives.py",
        "is_last = not is_row or rows == 1",
        "is_last = not is_row",
        (
            "sdk/kernels/test_collective_cycles.py",
            "sdk/kernels",
        ),
    ),
    Fault(
        "reach-backwards",
        "a descriptor that goes back is said to reach one element further",
        "sdk/program/descriptor.py",
        "divmod(length - 1, size)",
        "divmod(length - (step > 0), size)",
        ("sdk/program/test_reach_of_descriptors.py",),
    ),
)
