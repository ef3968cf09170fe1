"""LLVM text of a whole module: its functions, their entries, and what they rest on."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.codegen import checks, mailboxes, scalars, vectors
from openwafer.sdk.codegen import floats as floats_module
from openwafer.sdk.codegen.body import Body, llvm_type
from openwafer.sdk.codegen.elements import element_function
from openwafer.sdk.codegen.floats import Floats, from_raw_bits
from openwafer.sdk.codegen.frames import (
    FIRST_PARAMETER,
    STATE,
    Frame,
    plain_frame,
    suspending_frame,
)
from openwafer.sdk.codegen.functions import Unit, native_name, result_type
from openwafer.sdk.codegen.instructions import function_text
from openwafer.sdk.codegen.mailboxes import CODE_PARAMETERS, read, store, trap, word_address, write
from openwafer.sdk.codegen.vectors import Kernel, kernel_declaration, kernel_function
from openwafer.sdk.ir.checks import Accesses, Depth, checked
from openwafer.sdk.ir.cost import timed
from openwafer.sdk.ir.counters import first_counters
from openwafer.sdk.ir.function import Address, Function, FunctionName, Instruction, Module, Type
from openwafer.sdk.ir.numbers import num_words
from openwafer.sdk.ir.order import NO_REACH, Reach, may_be_in_flight, ordered
from openwafer.sdk.ir.stepped import stepped
from openwafer.sdk.ir.suspension import (
    callees,
    calls,
    functions_in_loops,
    is_request,
    isolate,
    recursive_functions,
    saved_slots,
    suspending_functions,
)
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.debug_info import FrameInfo
from openwafer.sdk.program.mailbox import Outcome, Trap

SUPPORT: Final = (
    scalars.DECLARATIONS
    + floats_module.SUPPORT
    + mailboxes.SUPPORT
    + checks.SUPPORT
    + vectors.METADATA
)
"""What every LLVM module rests on."""
RUN: Final = "image_run"
"""Name of a module's function: mailbox, memory, links, entry's number, whether to resume."""


@dataclass(frozen=True)
class ModuleText:
    """LLVM text of a module's parts.

    Attributes:
        functions: each native function by its name, with the module's entries and its way in.
        in_loops: names of functions with loops, and of what these call.
        kernels: its vector operations, by the lines that declare them.
        frames: of its functions.
    """

    functions: Mapping[str, str]
    in_loops: frozenset[str]
    kernels: Mapping[str, str]
    frames: tuple[FrameInfo, ...]


@dataclass(frozen=True)
class ImageKind:
    """What native code depends on besides an image's code.

    Attributes:
        splits: by entry: whether its arguments are parts of one wavelet's 32 bits.
        reach: what the image has besides that moves data.
        depth: how closely code is looked at.
        counts: whether it counts in the PE's counters.
    """

    splits: tuple[bool, ...]
    reach: Reach = NO_REACH
    depth: Depth = Depth.PLAIN
    counts: bool = False


def module_text(
    module: Module,
    kind: ImageKind,
    generation: Generation,
    *,
    has_f16: bool,
    statements: Sequence[int] = (),
) -> ModuleText:
    """LLVM text of a module.

    Args:
        module: verified.
        kind: all else that the text depends on.
        generation: whose time is counted.
        has_f16: the host's processor converts f16 by itself.
        statements: of all places, where it can be stopped before each statement.
    """
    accesses = Accesses(kind.depth, may_be_in_flight(module, kind.reach))
    in_order = ordered(timed(module, generation), kind.reach)
    whole = checked(stepped(in_order, statements) if statements else in_order, accesses)
    unit = _unit(whole, Floats(has_f16=has_f16), first_counters(whole) if kind.counts else {})
    written = {name: _function_text(unit, one) for name, one in unit.module.functions.items()}
    functions = {native_name(name): text for name, (text, _) in written.items()}
    for number, (name, splits) in enumerate(zip(module.entries, kind.splits, strict=True)):
        text = _entry_text(unit, number, unit.module.functions[name], splits=splits)
        functions[f"@entry.{number}"] = text
    ways = tuple((native_name(name), name in unit.suspending) for name in module.entries)
    functions[f"@{RUN}"] = _run(unit.module.stack_base, ways)
    in_loops = frozenset(map(native_name, functions_in_loops(module)))
    kernels = {
        kernel_declaration(kernel): kernel_function(
            kernel, unit.floats, generation, module.memory_words
        )
        for kernel in unit.kernels
    }
    frames = tuple(frame for _, frame in written.values())
    return ModuleText(functions, in_loops, kernels, frames)


def _function_text(unit: Unit, function: Function) -> tuple[str, FrameInfo]:
    """LLVM text of a function, written once for all modules where it says the same."""

    def write(one: Function) -> tuple[tuple[str, FrameInfo], tuple[Kernel, ...]]:
        alone = replace(unit, kernels={})
        return function_text(alone, one), tuple(alone.kernels)

    called = {name for one in calls(function) for name in callees(unit.module, one)}
    written, kernels = function.once(
        (
            *(function_text, unit.floats.has_f16, unit.module.memory_words),
            unit.first_counters.get(function.name),
            tuple(map(unit.spell_constant, _external(function))),
            tuple(map(unit.seen_by_callers, sorted(called))),
        ),
        write,
    )
    unit.kernels.update(dict.fromkeys(kernels))
    return written


def _external(function: Function) -> tuple[Address | FunctionName, ...]:
    """What a function names of its module, but for its calls."""

    def find(one: Function) -> tuple[Address | FunctionName, ...]:
        args = (arg for i in one.instructions for arg in i.args)
        return tuple(dict.fromkeys(arg for arg in args if isinstance(arg, Address | FunctionName)))

    return function.once(_external, find)


def element_text(*, has_f16: bool) -> str:
    """LLVM text of the function that computes one element of any operation."""
    return SUPPORT + "\n" + element_function(Floats(has_f16=has_f16))


def _unit(module: Module, floats: Floats, counters: dict[str, int]) -> Unit:
    suspending, recursive = suspending_functions(module), recursive_functions(module)

    def suspends(instruction: Instruction) -> bool:
        return is_request(instruction) or any(
            name in suspending for name in callees(module, instruction)
        )

    def isolated(function: Function) -> tuple[Function, Frame]:
        whole = isolate(function, suspends)
        return whole, suspending_frame(whole, saved_slots(whole, suspends))

    functions: dict[str, Function] = {}
    frames: dict[str, Frame] = {}
    for name, function in module.functions.items():
        if name in suspending:
            waits = tuple(map(suspends, calls(function)))
            functions[name], frames[name] = function.once((isolate, waits), isolated)
        else:
            functions[name] = function
            frames[name] = plain_frame(function, is_recursive=name in recursive)
    return Unit(
        module=replace(module, functions=functions),
        floats=floats,
        frames=frames,
        suspending=suspending,
        addresses={variable.name: variable.address for variable in module.globals},
        numbers={name: number for number, name in enumerate(module.functions)},
        first_counters=counters,
    )


def _entry_text(unit: Unit, number: int, function: Function, *, splits: bool) -> str:
    """The text of :func:`_entry`, written once for all modules where it says the same."""
    seen = unit.seen_by_callers(function.name)
    key = (_entry, number, splits, unit.module.stack_base, unit.module.memory_words, seen)
    return function.once(key, lambda one: _entry(unit, number, one, splits=splits))


def _entry(unit: Unit, number: int, function: Function, *, splits: bool) -> str:
    """A function without arguments: they come from the mailbox; word 0 of the stack is `number`."""
    body = Body(f"define internal i32 @entry.{number}({CODE_PARAMETERS}, i32 %fp) nounwind")
    body.begin_entry()
    args = _entry_arguments(body, function, splits=splits)
    name, end = native_name(function.name), unit.module.stack_base + 1
    if function.name in unit.suspending:
        end += unit.frames[function.name].num_words
        if end > unit.module.memory_words:
            trap(body, Trap.STACK_OVERFLOW, str(end), str(function.first_place))
            body.do(f"ret i32 {Outcome.TRAPPED.value}")
            return body.text()
        place = FIRST_PARAMETER
        for slot, arg in zip(function.parameters, args, strict=True):
            offset = body.value(f"add i32 %fp, {place}")
            store(body, word_address(body, offset, "i32"), arg, slot.type)
            place += num_words(slot.type)
        state = body.value(f"add i32 %fp, {STATE}")
        store(body, word_address(body, state, "i32"), "0", Type.U16)
        call = f"call i32 {name}({mailboxes.CODE_ARGUMENTS}, i32 %fp)"
        body.do(f"ret i32 {body.value(call)}")
        return body.text()
    values = "".join(
        f", {llvm_type(slot.type)} {arg}"
        for slot, arg in zip(function.parameters, args, strict=True)
    )
    whole = result_type(function)
    trapped = body.value(f"call {whole} {name}({mailboxes.CODE_ARGUMENTS}, i32 %fp{values})")
    if function.return_type is not Type.VOID:
        trapped = body.value(f"extractvalue {whole} {trapped}, 0")
    outcomes = str(Outcome.TRAPPED.value), str(Outcome.FINISHED.value)
    body.do(f"ret i32 {body.select(trapped, 'i32', *outcomes)}")
    return body.text()


def _entry_arguments(body: Body, function: Function, *, splits: bool) -> list[str]:
    args, shift = [], 0
    for index, slot in enumerate(function.parameters):
        if splits:
            wavelet = body.value(f"and i64 {read(body, mailbox.ARGUMENTS)}, 4294967295")
            raw = body.value(f"lshr i64 {wavelet}, {shift}")
            shift += 16 * num_words(slot.type)
        else:
            raw = read(body, mailbox.ARGUMENTS + index)
        args.append(from_raw_bits(body, raw, 64, slot.type))
    return args


@functools.lru_cache(maxsize=64)
def _run(base: int, entries: tuple[tuple[str, bool], ...]) -> str:
    """The module's way in; the number of the running entry lies at the stack's base.

    `entries` are native names, and whether each may suspend.
    """
    body = Body(f"define i32 @{RUN}({CODE_PARAMETERS}, i32 %number, i32 %is_resume) nounwind")
    body.begin_entry()
    limit = body.value(f"add i64 {read(body, mailbox.CYCLE)}, {mailbox.MOST_CYCLES}")
    write(body, mailbox.LIMIT, limit)
    running = word_address(body, str(base), "i64")
    body.branch(body.value("icmp ne i32 %is_resume, 0"), "resume", "start")
    body.begin("start")
    narrow = body.value("trunc i32 %number to i16")
    body.do(f"store i16 {narrow}, ptr {running}, align 2")
    cases = " ".join(f"i32 {number}, label %start{number}" for number in range(len(entries)))
    body.do(f"switch i32 %number, label %bad [ {cases} ]")
    resumable = [(number, name) for number, (name, waits) in enumerate(entries) if waits]
    body.begin("resume")
    number = body.value(f"load i16, ptr {running}, align 2")
    cases = " ".join(f"i16 {number}, label %resume{number}" for number, _ in resumable)
    body.do(f"switch i16 {number}, label %bad [ {cases} ]")
    arguments = f"({mailboxes.CODE_ARGUMENTS}, i32 {base + 1})"
    for index in range(len(entries)):
        body.begin(f"start{index}")
        body.do(f"ret i32 {body.value(f'call i32 @entry.{index}{arguments}')}")
    for index, name in resumable:
        body.begin(f"resume{index}")
        body.do(f"ret i32 {body.value(f'call i32 {name}{arguments}')}")
    body.begin("bad")
    trap(body, Trap.UNREACHABLE, "0", "0")
    body.do(f"ret i32 {Outcome.TRAPPED.value}")
    return body.text()
