"""Where the variables of an image lie: by what they are, and in the order of their declarations.

Arrays, structs and numbers lie in sections like those of the machine's files: what begins with a
value, then what begins with zeros. Descriptors, pointers and literals come before all of them, so
that nothing of the compiler's own lies between arrays, or behind the last one.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.image_state import FIRST_ADDRESS, ImageState
from openwafer.sdk.csl.sema.layout_state import MemoryPlan
from openwafer.sdk.csl.types import Array, Pointer
from openwafer.sdk.csl.values import Variable
from openwafer.sdk.ir import function as ir

_ARRAY_WORDS: Final = 2
"""Alignment of arrays: four bytes, as in the machine's files."""


class Section(IntEnum):
    """A part of the data, in the order of memory."""

    CONSTANTS = 0
    """What the machine's code holds itself: literals, and descriptors that nothing assigns to."""
    REFERENCES = 1
    """Descriptors and pointers."""
    VALUES = 2
    ZEROS = 3


def memory_plan(state: ImageState) -> MemoryPlan:
    """The addresses that the variables of an analysed image are to have."""
    sections = sections_of(state)
    variables = sorted(
        state.variables.values(), key=lambda v: (sections[v.name], v.declared, v.address)
    )
    addresses, end = {}, FIRST_ADDRESS
    for variable in variables:
        align = alignment(variable)
        addresses[variable.name] = begin = -(-end // align) * align
        end = begin + max(1, types.num_words(variable.type))
    return MemoryPlan(addresses, end)


def alignment(variable: Variable) -> int:
    """Words that a variable's address is a multiple of."""
    natural = types.align_words(variable.type)
    own = _ARRAY_WORDS if isinstance(variable.type, Array) else 1
    return max(variable.align_words, natural, own)


def sections_of(state: ImageState) -> Mapping[str, Section]:
    """The section of each variable, by its name."""
    changed = _changed(state)
    return {name: _section(one, name in changed) for name, one in state.variables.items()}


def _section(variable: Variable, is_changed: bool) -> Section:
    is_value = types.is_aggregate(variable.type)
    if not variable.is_mutable or not (is_value or is_changed):
        return Section.CONSTANTS
    if variable.type in types.DSDS or isinstance(variable.type, Pointer):
        return Section.REFERENCES
    return Section.VALUES if any(variable.words) else Section.ZEROS


def _changed(state: ImageState) -> set[str]:
    """Variables that code may assign to: it does more with their address than to load from it."""
    found = {symbol for _, symbol in state.exported_symbols}
    for function in state.module.functions.values():
        found |= function.once(_taken, _taken)
    return found


def _taken(function: ir.Function) -> set[str]:
    return {
        arg.symbol
        for one in function.instructions
        if one.op != "load"
        for arg in one.args
        if isinstance(arg, ir.Address)
    }
