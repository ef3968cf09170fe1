"""The text form of the intermediate representation is read back as it was written."""

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.ir.function import (
    Address,
    Block,
    Constant,
    Function,
    FunctionName,
    Global,
    Instruction,
    Module,
    Register,
    Resource,
    Slot,
    Type,
)
from openwafer.sdk.ir.text import parse, render
from openwafer.sdk.program.debug_info import Place


def counting_module() -> Module:
    number = Register(0, Type.I16)
    descriptor = Constant((1, 4, 3, 0, 1, 1, 0, 0), Type.DSD)
    instructions = [
        Instruction("get", (), 0, Type.I16, ("n",), 1),
        Instruction("call", (number, FunctionName("count")), 1, Type.F32, ("other name",)),
        Instruction("vector", (Resource("fifo", 2), descriptor), -1, Type.VOID, ("mov16", "async")),
        Instruction("store", (Address("sum", 1), Constant(-3, Type.I16))),
        Instruction("return", (Register(1, Type.F32),)),
    ]
    blocks = [Block("head", instructions), Block("tail", [Instruction("unreachable")], True)]
    slots = [Slot("n", Type.I16), Slot("i", Type.U16), Slot("buffer", Type.VOID, 3)]
    function = Function("count", 1, Type.F32, slots, blocks)
    variables = [Global("sum", 16, 2, (0, 65535)), Global("a b", 18, 1, (), False)]
    places = [
        Place('a "b".csl', 12, 3, "main"),
        Place("b.csl", 4, 1, "main", 4, 9, "twice", 0),
    ]
    return Module("pe.csl", 40, 24576, variables, {"count": function}, ["count"], places)


def test_a_module_is_read_back_as_it_was_written() -> None:
    module = counting_module()
    assert parse(render(module)) == module


def test_the_text_is_stable() -> None:
    text = render(counting_module())
    assert render(parse(text)) == text


def test_an_unknown_type_is_pointed_at() -> None:
    with pytest.raises(OpenwaferError, match="'i17' is no type"):
        parse('module "m" stack 0 memory 9\nfn &f($a: i17) void {\n}')


def test_a_value_must_be_defined_before_it_is_used() -> None:
    text = 'module "m" stack 0 memory 9\nfn &f() void {\nhead:\n  set[a] %4 !0\n}'
    with pytest.raises(OpenwaferError, match="%4 is used before its definition"):
        parse(text)


def test_a_stray_character_is_pointed_at() -> None:
    with pytest.raises(OpenwaferError, match="no token begins with '#'"):
        parse('module "m" stack 0 memory 9\n  # nothing')
