"""What a model's forwards change that each system may have for itself.

Micro-batches are dealt to systems, so that what a forward leaves is seen by those of its own system
alone. That is no harm where no forward reads it, and where the first forward alone leaves it and
takes it from no batch and no random number: a mask that is built once, a library's hooks.
"""

import dis
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from openwafer.training.stream.execute.snapshot import Snapshot, functions_reached
from openwafer.training.torch_private import pytree

ALL_ATTRIBUTES = frozenset({"__dict__", "vars"})


class Derived:
    """Calls operators, and knows which tensors come from some others or from random numbers.

    Args:
        call: calls an operator.
        sources: the others, in containers.
    """

    def __init__(self, call: Callable[..., Any], sources: object) -> None:
        self._call = call
        self._storages: set[weakref.ref[torch.UntypedStorage]] = set()
        self._add(sources)

    def __call__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""
        found = self._call(operator, args, kwargs)
        is_drawn = torch.Tag.nondeterministic_seeded in operator.tags
        if is_drawn or self.has((args, kwargs)):
            self._add(found)
            if operator._schema.is_mutable:  # noqa: SLF001 - torch has no other way to it
                self._add(args)
        return found

    def _add(self, values: object) -> None:
        self._storages.update(map(weakref.ref, _storages(values)))

    def has(self, value: object) -> bool:
        """Whether a tensor in a value comes from the others."""
        return any(weakref.ref(storage) in self._storages for storage in _storages(value))


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()


def harmless_names(
    first: Iterable[tuple[str, object]],
    later: Snapshot,
    model: nn.Module,
    comes_from_data: Callable[[object], bool],
) -> Iterator[str]:
    """Names of the changes that each system may have for itself.

    Args:
        first: names and values of what the first forwards have changed.
        later: the state behind these, before other forwards, which have run.
        model: whose forwards they are.
        comes_from_data: whether a value may be another one on another system.
    """
    again = set(later.changed())
    unread = _names_unread(model)
    for name, value in first:
        is_once = name not in again and not comes_from_data(value)
        if is_once or name.rpartition(".")[2] in unread:
            yield name


def _names_unread(model: nn.Module) -> set[str]:
    """Attributes that a model's code writes and never reads, of whatever object."""
    codes = [function.__code__ for function in functions_reached(model)]
    written, read = set[str](), set[str]()
    for name, is_written in (one for code in codes for one in _names_used(code)):
        (written if is_written else read).add(name)
    if read & ALL_ATTRIBUTES:
        return set()
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(kind).values():
            if isinstance(function, FunctionType):
                read.update(
                    name for name, is_written in _names_used(function.__code__) if not is_written
                )
    return written - read


def _names_used(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Names in a function's code, each with whether it is that of an attribute that is set."""
    for instruction in dis.get_instructions(code):
        if isinstance(instruction.argval, str):
            # Constants, too: getattr takes them.
            yield instruction.argval, instruction.opname == "STORE_ATTR"
        elif isinstance(instruction.argval, CodeType):
            yield from _names_used(instruction.argval)
