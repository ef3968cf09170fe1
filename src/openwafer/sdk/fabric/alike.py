"""Remarks about PEs, of which those that say the same of several become one."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

Remark: TypeAlias = tuple[int, str]
"""A PE, and what is said of it, as it follows its name."""


def alike_together(remarks: Iterable[Remark], name: Callable[[int], str]) -> list[str]:
    """One line for each distinct remark, in the order of the first PE that it is about."""
    pes_of: dict[str, list[int]] = {}
    for pe, text in remarks:
        pes = pes_of.setdefault(text, [])
        if pe not in pes:
            pes.append(pe)
    return [f"{name(pes[0])}{text}{_others(pes[1:], name)}" for text, pes in pes_of.items()]


def _others(pes: list[int], name: Callable[[int], str]) -> str:
    if not pes:
        return ""
    if len(pes) == 1:
        return f"; the same on {name(pes[0])}"
    return f"; the same on {len(pes)} more PEs, the last {name(pes[-1])}"
