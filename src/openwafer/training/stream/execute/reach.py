"""What objects reach: what they hold, and what their code names, found by reading it.

What the code of a model can reach beside its modules (globals, closures, classes, objects) are the
names in a function's code, the cells of its closure, and what hangs on them. Nothing is run.
Libraries that keep no state for a model's code are not looked into.
"""

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import nn

Path: TypeAlias = tuple[Any, ...]  # (path of the holder, key); () is nameless
Follow: TypeAlias = Callable[[object], Iterable[tuple[str, object]]]

ATOMS: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
NOTHING: Final = object()


class Slot:
    """A variable: a global one, or an attribute of a class or of a module of Python.

    Args:
        owner: the class or module, or the dictionary of globals.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    def read(self) -> object:
        """What it holds; :data:`NOTHING` where it is not there."""
        variables = self._owner if isinstance(self._owner, dict) else vars(self._owner)
        return variables.get(self._name, NOTHING)

    def write(self, value: object) -> None:
        """Let it hold a value, or nothing."""
        if isinstance(self._owner, dict):
            if value is NOTHING:
                self._owner.pop(self._name, None)
            else:
                self._owner[self._name] = value
        elif value is NOTHING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, value)


def read_cell(cell: CellType) -> object:
    """What a closure's cell holds; :data:`NOTHING` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return NOTHING


def walk(
    roots: Iterable[tuple[str, object]],
    follow: Follow,
    passed_over: frozenset[str],
    max_objects: int = 100_000,
) -> Iterator[tuple[Path, object]]:
    """Every object that is reached from ``roots``, once; see :class:`Snapshot`."""
    # Kept alive, so that an identity is not another object's.
    seen: dict[int, object] = {}
    unseen: list[tuple[Path, object]] = [(((), name), root) for name, root in roots]
    while unseen and len(seen) < max_objects:
        path, found = unseen.pop()
        if type(found) in ATOMS or id(found) in seen:
            continue
        seen[id(found)] = found
        yield path, found
        unseen.extend(
            ((path, key), item)
            for key, item in _inside(found, follow)
            if type(item) not in ATOMS and key not in passed_over
        )


def _inside(found: Any, follow: Follow) -> Iterable[tuple[object, object]]:
    if isinstance(found, dict):
        # A dictionary's own items: a class of its own may make values when it is asked.
        return dict.items(found)
    if isinstance(found, list | tuple | set | frozenset | deque):
        return ((None, item) for item in found)
    return follow(found)


_LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "torch", "numpy", "openwafer"})
# Of what torch keeps in a module, the hooks that run in a pass and the buffers are looked into.
# The two at the end lead from a module of Lightning to all of its fit, and its copies have neither.
PASSED_OVER: Final = frozenset(vars(nn.Module())) - {
    "_buffers",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
} | {"_trainer", "_fabric"}
# A model has this many objects rarely; beyond, nobody counts calls in them.
MAX_OBJECTS: Final = 50_000


def held_by(model: nn.Module) -> Iterator[object]:
    """What a model's modules hold themselves, closures included; code is not read."""
    follow = _Follower(reads_code=False).follow
    return (found for _, found in walk(model.named_modules(), follow, PASSED_OVER, MAX_OBJECTS))


def draws_beside_torch(module: nn.Module) -> bool:
    """Whether the code of a module can draw from the generators of Python or NumPy."""
    shared = {id(random), id(np.random)}
    owners = {id(random.random.__self__), id(np.random.rand.__self__)}  # type: ignore[attr-defined]
    return any(
        # Objects of others may do anything when they are asked, such as import what is not there.
        id(found) in shared
        or (isinstance(found, BuiltinMethodType | MethodType) and id(found.__self__) in owners)
        for found in _reached_by_code(module)
        if not isinstance(found, torch.Tensor)
    )


def names_autocast(module: nn.Module) -> bool:
    """Whether the code of a module can enter autocast."""
    return any(
        isinstance(found, torch.autocast)
        or (isinstance(found, type) and issubclass(found, torch.autocast))
        or (
            isinstance(found, FunctionType)
            and any("autocast" in name for name in _names_in(found.__code__))
        )
        for found in _reached_by_code(module)
    )


def functions_reached(module: nn.Module) -> Iterator[FunctionType]:
    """The functions of a module and of its classes, and those that they name."""
    return (found for found in _reached_by_code(module) if isinstance(found, FunctionType))


def _reached_by_code(module: nn.Module) -> Iterator[object]:
    reached = walk(module.named_modules(), _Follower().follow, PASSED_OVER | {"_buffers"})
    return (found for _, found in reached)


def defaults_of(function: FunctionType) -> list[object]:
    """The default arguments of a function."""
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def following_code() -> Follow:
    """Says what is inside an object that is no container, and what its code names."""
    return _Follower().follow


class _Follower:
    """Says what is inside an object that is no container."""

    def __init__(self, *, reads_code: bool = True) -> None:
        self._reads_code = reads_code
        self._slots: dict[tuple[int, str], Slot] = {}

    def follow(self, found: object) -> Iterator[tuple[str, object]]:
        """Names and objects inside ``found``."""
        match found:
            case FunctionType():
                yield from self._of_function(found)
            case MethodType():
                yield from (("", found.__func__), ("", found.__self__))
            case functools.partial():
                yield from (("", found.func), ("", found.args), ("", found.keywords))
            case CellType():
                yield "", read_cell(found)
            case Slot():
                yield "", found.read()
            case type() if self._reads_code and not _is_of_library(found):
                yield from self._of_class(found)
            case torch.Tensor() | ModuleType() | type():
                pass
            case _:
                yield from self._of_object(found)

    def _of_function(self, function: FunctionType) -> Iterator[tuple[str, object]]:
        if hasattr(function, "__wrapped__"):
            yield "", function.__wrapped__
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            yield name, cell
        yield "", defaults_of(function)
        if not self._reads_code or _is_of_library(function):
            return
        names = frozenset(_names_in(function.__code__))
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            yield name, self._slot(function.__globals__, name)
            if isinstance(value, ModuleType):
                yield from self._of_module(value, names)

    def _of_module(self, module: ModuleType, names: frozenset[str]) -> Iterator[tuple[str, object]]:
        yield "", module
        if module is np and "random" in names:
            yield "", np.random
        if module.__name__.partition(".")[0] not in _LIBRARIES:
            for name in names & vars(module).keys():
                yield name, self._slot(module, name)

    def _of_class(self, kind: type) -> Iterator[tuple[str, object]]:
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType | staticmethod | classmethod | property):
                yield from (("", one) for one in _functions_of(value))
            elif not name.startswith("__"):
                yield name, self._slot(kind, name)

    def _of_object(self, found: object) -> Iterator[tuple[str, object]]:
        kind = type(found)
        for base in kind.__mro__ if self._reads_code else ():
            if not _is_of_library(base):
                yield "", base
        if kind.__module__.startswith("openwafer"):
            # Objects of others may do anything when they are asked.
            yield "", getattr(found, "__wrapped__", None)
        root = kind.__module__.partition(".")[0]
        if isinstance(found, nn.Module) or root == "types" or root not in _LIBRARIES:
            attributes = getattr(found, "__dict__", None)
            if isinstance(attributes, dict):
                yield "", attributes
            yield from _of_slots(found)

    def _slot(self, namespace: Any, name: str) -> Slot:
        return self._slots.setdefault((id(namespace), name), Slot(namespace, name))


def _of_slots(found: object) -> Iterator[tuple[str, object]]:
    for kind in type(found).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            value = getattr(found, name, None)
            if type(value) not in ATOMS:
                yield name, value


def _functions_of(value: Any) -> Iterator[object]:
    if isinstance(value, property):
        yield from (one for one in (value.fget, value.fset) if one is not None)
    else:
        yield getattr(value, "__func__", value)


def _names_in(code: CodeType) -> Iterator[str]:
    # What a tool has written into the code has names that nobody can write.
    yield from filter(str.isidentifier, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_of_library(found: Any) -> bool:
    path = found.__module__ or "builtins"
    root = path.partition(".")[0]
    # Of the transformers library, the files of its models; behind the others hangs all the rest.
    return root in _LIBRARIES or (root == "transformers" and ".modeling_" not in path)
