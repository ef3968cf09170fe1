"""What every module must satisfy; a compiler that breaks it has a fault."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.ir.function import (
    DSDS,
    Address,
    Block,
    Constant,
    Function,
    FunctionName,
    Instruction,
    Module,
    Register,
    Slot,
    Type,
    Value,
)
from openwafer.sdk.ir.numbers import INTEGERS, WIDTHS
from openwafer.sdk.ir.operations import (
    MARKS,
    MATH_FUNCTIONS,
    OPERATIONS,
    ROLES,
    VECTOR_OPTIONS,
)
from openwafer.sdk.ir.text import render_function

_CLASSES = {
    "I": INTEGERS,
    "B": frozenset((Type.BOOL,)),
    "P": frozenset((Type.PTR,)),
    "D": DSDS,
    "N": frozenset(Type) - DSDS - {Type.VOID},
    "S": frozenset(Type) - DSDS - {Type.VOID},
}


def verify(module: Module) -> None:
    """Check a module.

    Raises:
        OpenwaferError: ``ir-invalid``, one diagnostic for each function that is wrong.
    """
    findings = [*_check_module(module)]
    for function in module.functions.values():
        wrong, links = function.once(_checked, _checked)
        wrong = wrong or next(_check_links(module, links), None)
        if wrong is not None:
            findings.append(f"&{function.name}: {wrong}\n{render_function(function)}\n")
    if findings:
        raise OpenwaferError(
            *(Diagnostic(Severity.ERROR, "ir-invalid", finding) for finding in findings)
        )


def _check_module(module: Module) -> Iterator[str]:
    for entry in module.entries:
        if entry not in module.functions:
            yield f"entry &{entry} is no function"
    end = 0
    for variable in sorted(module.globals, key=lambda variable: variable.address):
        if variable.address < end:
            yield f"@{variable.name} at {variable.address} begins before {end}"
        if len(variable.initial) > variable.num_words:
            yield f"@{variable.name} has {len(variable.initial)} words of {variable.num_words}"
        end = variable.address + variable.num_words
    if end > module.stack_base or module.stack_base > module.memory_words:
        yield f"data ends at {end}, stack begins at {module.stack_base} of {module.memory_words}"


@dataclass(frozen=True, slots=True)
class _Link:
    """What a function takes a module to have.

    Attributes:
        value: a global or a function; None for a call.
        callee: what is called; empty where nothing is.
        parameters: types that the callee takes.
        result: type that it returns.
    """

    value: Address | FunctionName | None
    callee: str = ""
    parameters: tuple[Type, ...] = ()
    result: Type = Type.VOID


_Links: TypeAlias = dict[_Link, str]
"""With the place of the first instruction that says so."""


def _checked(function: Function) -> tuple[str | None, _Links]:
    """What is wrong with a function in any module, and what else depends on the module."""
    checker = _Checker(function)
    return next(checker.check(), None), checker.links


def _check_links(module: Module, links: _Links) -> Iterator[str]:
    names = {variable.name for variable in module.globals}
    for link, where in links.items():
        match link.value:
            case Address(symbol) if symbol not in names:
                yield f"{where}there is no global @{symbol}"
            case FunctionName(name) if name not in module.functions:
                yield f"{where}there is no function &{name}"
            case None:
                yield from (where + wrong for wrong in _check_call(module, link))
            case _:
                pass


def _check_call(module: Module, link: _Link) -> Iterator[str]:
    callee = module.functions.get(link.callee)
    if callee is None:
        yield f"there is no function &{link.callee}"
        return
    want = tuple(slot.type for slot in callee.parameters)
    if want != link.parameters:
        yield f"&{callee.name} takes {want}, is given {link.parameters}"
    if link.result is not callee.return_type:
        yield f"&{callee.name} returns {callee.return_type}, not {link.result}"


class _Checker:
    """Walks one function; yields what is wrong, the first finding first.

    Attributes:
        links: what the walk has met that only a module can say.
    """

    def __init__(self, function: Function) -> None:
        self.links: _Links = {}
        self._function = function
        self._slots: dict[str, Slot] = {slot.name: slot for slot in function.slots}
        self._labels = {block.label for block in function.blocks}
        self._where = ""
        self._defined: dict[int, Type] = {}

    def check(self) -> Iterator[str]:
        function = self._function
        if not function.blocks:
            yield "has no block"
        if len(self._slots) != len(function.slots) or len(self._labels) != len(function.blocks):
            yield "has two slots or two blocks of one name"
        if any(slot.is_memory for slot in function.parameters):
            yield "has a parameter in memory"
        for block in function.blocks:
            yield from self._check_block(block)

    def _check_block(self, block: Block) -> Iterator[str]:
        visible: dict[int, Type] = {}
        for index, instruction in enumerate(block.instructions):
            self._where = where = f"{block.label}, instruction {index} ({instruction.op}): "
            yield from (where + wrong for wrong in self._check_instruction(instruction, visible))
            is_last = index == len(block.instructions) - 1
            if OPERATIONS[instruction.op].is_terminator is not is_last:
                yield where + "a terminator stands last, and only there"
            if instruction.result >= 0:
                if instruction.result in self._defined:
                    yield where + f"%{instruction.result} is defined twice"
                self._defined[instruction.result] = instruction.type
                visible[instruction.result] = instruction.type
        if not block.instructions:
            yield f"{block.label} is empty"

    def _check_instruction(
        self, instruction: Instruction, visible: dict[int, Type]
    ) -> Iterator[str]:
        if instruction.op not in OPERATIONS:
            yield "no such operation"
            return
        for arg in instruction.args:
            yield from self._check_value(arg, visible)
        yield from self._check_names(instruction)
        yield from _check_types(instruction)
        yield from self._check_kind(instruction)

    def _check_value(self, value: Value, visible: dict[int, Type]) -> Iterator[str]:
        match value:
            case Register(number, kind):
                if visible.get(number) is not kind:
                    yield f"%{number} is not a {kind} defined before in this block"
            case Constant(number, kind):
                yield from _check_constant(number, kind)
            case Address(symbol):
                self.links.setdefault(_Link(Address(symbol)), self._where)
            case FunctionName():
                self.links.setdefault(_Link(value), self._where)
            case _:
                pass

    def _check_names(self, instruction: Instruction) -> Iterator[str]:
        want = OPERATIONS[instruction.op].names
        fixed = len(want) - want.count("*")
        num = len(instruction.names)
        if num < fixed or (num > fixed and "*" not in want):
            yield f"takes {', '.join(want) or 'no names'}, has {instruction.names}"

    def _check_kind(self, instruction: Instruction) -> Iterator[str]:
        match instruction.op:
            case "show":
                unknown = [role for role in instruction.names if role not in ROLES]
                if unknown or len(instruction.names) != len(instruction.args):
                    yield f"has roles {instruction.names} for {len(instruction.args)} descriptors"
            case "get" | "set" | "slot_address":
                yield from self._check_slot(instruction)
            case "jump" | "branch" | "switch":
                missing = [name for name in instruction.names if name not in self._labels]
                yield from (f"there is no block {name}" for name in missing)
            case "call":
                kinds = tuple(arg.type for arg in instruction.args)
                link = _Link(None, instruction.names[0], kinds, instruction.type)
                self.links.setdefault(link, self._where)
            case "return":
                yield from self._check_return(tuple(arg.type for arg in instruction.args))
            case "math" if instruction.names[0] not in MATH_FUNCTIONS:
                yield f"there is no function of the numbers '{instruction.names[0]}'"
            case "vector":
                yield from _check_vector(instruction)
            case _:
                pass

    def _check_return(self, kinds: tuple[Type, ...]) -> Iterator[str]:
        want = self._function.return_type
        if kinds != (() if want is Type.VOID else (want,)):
            yield f"returns {kinds}, the function {want}"

    def _check_slot(self, instruction: Instruction) -> Iterator[str]:
        slot = self._slots.get(instruction.names[0])
        if slot is None:
            yield f"there is no slot ${instruction.names[0]}"
        elif slot.is_memory is not (instruction.op == "slot_address"):
            yield f"${slot.name} is {'in memory' if slot.is_memory else 'a register'}"
        elif not slot.is_memory:
            kind = instruction.args[0].type if instruction.op == "set" else instruction.type
            if kind is not slot.type:
                yield f"${slot.name} is {slot.type}, not {kind}"


def _check_constant(value: int | tuple[int, ...], kind: Type) -> Iterator[str]:
    if kind in DSDS:
        want = WIDTHS[kind] // 16
        if not isinstance(value, tuple) or len(value) != want:
            yield f"a {kind} has {want} words, not {value}"
        elif any(not 0 <= word < 1 << 16 for word in value):
            yield f"a word of {value} has more than 16 bits"
    elif not isinstance(value, int):
        yield f"{value} is no {kind}"
    elif not -(1 << (WIDTHS[kind] - 1)) <= value < 1 << WIDTHS[kind]:
        yield f"{value} does not fit {kind}"


def _check_types(instruction: Instruction) -> Iterator[str]:
    operation = OPERATIONS[instruction.op]
    kinds = [arg.type for arg in instruction.args]
    letters = operation.args.rstrip("*")
    if len(kinds) < len(letters) or (len(kinds) > len(letters) and "*" not in operation.args):
        yield f"takes {operation.args or 'nothing'}, is given {kinds}"
        return
    same = {kind for kind, letter in zip([*kinds], letters, strict=False) if letter == "T"}
    if operation.result == "T" and instruction.op not in ("get", "load", "call", "call_indirect"):
        same.add(instruction.type)
    if len(same) > 1 and letters:
        yield f"types differ: {', '.join(sorted(same))}"
    for kind, letter in zip(kinds, letters, strict=False):
        if kind not in _CLASSES.get(letter, _ANY):
            yield f"{kind} is given where {operation.args} is asked for"
    is_unused = instruction.op == "vector" and instruction.type is Type.VOID
    if (
        operation.result in ".BP"
        and not is_unused
        and instruction.type is not _RESULTS[operation.result]
    ):
        yield f"gives {_RESULTS[operation.result]}, not {instruction.type}"
    if (instruction.type is Type.VOID) is not (instruction.result < 0):
        yield "a result has a number and a type, or neither"


_ANY = frozenset(Type)
_RESULTS = {".": Type.VOID, "B": Type.BOOL, "P": Type.PTR}


def _check_vector(instruction: Instruction) -> Iterator[str]:
    name, *options = instruction.names
    if name not in VECTOR_OPS:
        yield f"there is no vector operation '{name}'"
        return
    options = [option for option in options if option not in MARKS]
    unknown = [option for option in options if option not in VECTOR_OPTIONS]
    if unknown:
        yield f"there is no option {unknown}"
        return
    num_values = sum(VECTOR_OPTIONS[option] for option in options)
    want = 1 + len(VECTOR_OPS[name].sources) + num_values
    if len(instruction.args) != want:
        yield f"{name} with {options} takes {want} operands, has {len(instruction.args)}"
