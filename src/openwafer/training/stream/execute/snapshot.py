"""What Python objects hold at one moment: whether it has changed since, and how to put it back.

A snapshot follows containers, and through them whatever else a caller lets it follow. It knows
objects by identity and keeps them alive, so that putting back also undoes what was exchanged.
What the code of a model can reach beside its modules (globals, closures, classes, objects) is found
by reading, not by running: the names in a function's code, the cells of its closure, and what hangs
on them. Libraries that keep no state for a model's code are not looked into.
"""

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter, eq, is_, methodcaller
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from openwafer.training.torch_private import is_fake

Path: TypeAlias = tuple[Any, ...]  # (path of the holder, key); () is nameless
Follow: TypeAlias = Callable[[object], Iterable[tuple[str, object]]]

ATOMS: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
NOTHING: Final = object()
# Larger arrays are not copied: nobody counts in them, and a data set must not be held twice.
MAX_ARRAY_BYTES: Final = 64 << 20


class _Form(NamedTuple):
    """How a kind of object is read, compared with what was read, and put back."""

    read: Callable[[Any], Any]
    is_same: Callable[[Any, Any], bool]
    put_back: Callable[[Any, Any], object]


class _Entry(NamedTuple):
    target: Any
    form: _Form
    content: Any
    path: Path

    def is_same(self) -> bool:
        return self.form.is_same(self.target, self.content)


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


def _write_cell(cell: CellType, value: object) -> None:
    if value is NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


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


class Snapshot:
    """The contents of everything that is reached from ``roots``.

    Args:
        roots: names and objects.
        follow: what else there is inside an object that is no container; nothing by default.
        passed_over: keys of dictionaries behind which nothing is looked for.
        max_objects: where the walk ends, however much there is.
    """

    def __init__(
        self,
        roots: Iterable[tuple[str, object]],
        follow: Follow = lambda found: (),
        passed_over: frozenset[str] = frozenset(),
        max_objects: int = 100_000,
    ) -> None:
        self._entries: dict[int, _Entry] = {}
        for path, found in walk(roots, follow, passed_over, max_objects):
            form = form_of(found)
            if form is not None:
                self._entries[id(found)] = _Entry(found, form, form.read(found), path)

    @property
    def holds_tensors(self) -> bool:
        """Whether it has copies of tensors."""
        return any(entry.form is _TENSOR for entry in self._entries.values())

    def storages(self) -> frozenset[int]:
        """Of the tensors that it can put back, as the numbers that torch has for them."""
        return frozenset(
            entry.target.untyped_storage()._cdata
            for entry in self._entries.values()
            if entry.form is _TENSOR and entry.content[0] is not None
        )

    def targets(self) -> set[int]:
        """Identities of the objects whose contents it has."""
        return set(self._entries)

    def is_current(self) -> bool:
        """Whether everything is as it was, as far as that can be told without waiting."""
        for target, form, content, _ in self._entries.values():
            if not form.is_same(target, content):
                return False
        return True

    def changed(self, but: AbstractSet[int] = frozenset(), *, waits: bool = False) -> list[str]:
        """Names of what differs, for people; values that are equal are no change.

        Args:
            but: identities of objects that are not looked at.
            waits: compares the values of tensors on a device, too, and not just their versions.
        """
        return [
            shown
            for key, entry in self._entries.items()
            if key not in but and not entry.is_same()
            for shown in _differences(entry, waits=waits)
        ]

    def changed_values(self) -> Iterator[tuple[str, object]]:
        """Names of what differs, each with what is there; of a dictionary's item, its value."""
        for entry in self._entries.values():
            if not entry.is_same():
                now = entry.target if isinstance(entry.target, dict) else {}
                for name in _differences(entry, waits=False):
                    yield name, now.get(name.rpartition(".")[2], entry.target)

    def changed_targets(self, *, waits: bool) -> Iterator[tuple[object, object]]:
        """Objects that do not hold what they held, each with that; see :meth:`changed`."""
        for entry in self._entries.values():
            if not entry.is_same() and _differences(entry, waits=waits):
                yield entry.target, entry.content

    def without(self, targets: AbstractSet[int]) -> "Snapshot":
        """This snapshot, but for objects of these identities."""
        return self._of({key: one for key, one in self._entries.items() if key not in targets})

    def __add__(self, other: "Snapshot") -> "Snapshot":
        return self._of(self._entries | other._entries)

    @staticmethod
    def _of(entries: dict[int, _Entry]) -> "Snapshot":
        made = Snapshot(())
        made._entries = entries
        return made

    def again(self, other: "Snapshot") -> "Snapshot":
        """The objects of this snapshot that are not in another one, as they are now."""
        known = other.targets()
        return self._of(
            {
                key: entry._replace(content=entry.form.read(entry.target))
                for key, entry in self._entries.items()
                if key not in known
            }
        )

    def put_back(self) -> None:
        """Let every object hold again what it held."""
        for target, form, content, _ in self._entries.values():
            if not form.is_same(target, content):
                form.put_back(target, content)


def form_of(found: object) -> _Form | None:
    """How an object that can be changed in place is treated; ``None`` where that is not known."""
    if isinstance(found, nn.Parameter):
        return None
    known = _EXACT.get(type(found))
    if known is not None:
        return known
    return next((form for kind, form in _FORMS if isinstance(found, kind)), None)


def _read_items(found: dict[Any, Any]) -> dict[Any, Any]:
    return dict(dict.items(found))


def _same_items(found: dict[Any, Any], content: dict[Any, Any]) -> bool:
    return (
        len(found) == len(content)
        and all(map(is_, dict.values(found), content.values()))
        and all(map(is_, dict.keys(found), content))
    )


def _fill_again(found: dict[Any, Any] | set[Any], content: Any) -> None:
    found.clear()
    found.update(content)


def _same_sequence(found: Sequence[Any], content: Sequence[Any]) -> bool:
    return len(found) == len(content) and all(map(is_, found, content))


def _read_tensor(tensor: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """A copy and a version; no copy of what a graph has made, which nobody may write in place."""
    copied = None if tensor.requires_grad else tensor.detach().clone()
    return copied, version_of(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place; 0 where torch does not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _same_tensor(tensor: torch.Tensor, content: tuple[torch.Tensor | None, int]) -> bool:
    # Values and not versions: batch normalisation writes without counting versions up. Where
    # values are not in host memory, nobody waits for them.
    if content[0] is None:
        return True
    if is_fake(tensor) and tensor.device.type == "cpu":
        return version_of(tensor) == content[1]
    return _is_on_host(tensor) and torch.equal(tensor, content[0])


def _is_on_host(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def _put_tensor_back(tensor: torch.Tensor, content: tuple[torch.Tensor | None, int]) -> None:
    held = content[0]
    if held is None:
        return
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if (tensor.shape, tensor.dtype) == (held.shape, held.dtype):
            tensor.copy_(held)
        else:
            # It was resized, as observers of ranges resize their buffers.
            tensor.data = held.clone()


def _read_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    return array.copy() if array.nbytes <= MAX_ARRAY_BYTES else None


def _put_array_back(array: np.ndarray[Any, Any], content: np.ndarray[Any, Any] | None) -> None:
    if content is not None:
        array[...] = content


def _same_array(array: np.ndarray[Any, Any], content: np.ndarray[Any, Any] | None) -> bool:
    return content is None or (
        array.shape == content.shape
        and bool(np.array_equal(array, content, equal_nan=array.dtype.kind in "fc"))
    )


def _put_numpy_state(found: np.random.Generator, content: Any) -> None:
    found.bit_generator.state = content


def _same_text(found: object, content: object) -> bool:
    return repr(found) == repr(content)


def _differences(entry: _Entry, *, waits: bool) -> list[str]:
    """Names of what an object holds that is not as it was."""
    target, content, name = entry.target, entry.content, _shown(entry.path)
    if isinstance(target, dict):
        gone = object()
        now = _read_items(target)
        changed = (
            key
            for key in {**content, **now}
            if not _is_alike(now.get(key, gone), content.get(key, gone))
        )
        # The key of a hook is a number of its own in each process.
        keys = (key if isinstance(key, str) else "" for key in changed)
        return list(dict.fromkeys(".".join(filter(None, (name, key))) for key in keys))
    if isinstance(target, torch.Tensor) and waits:
        return [] if torch.equal(target, content[0]) else [name]
    if isinstance(target, torch.Tensor) and not _is_on_host(target):
        return [name] if version_of(target) != content[1] else []
    if isinstance(target, Slot | CellType):
        return [] if _is_alike(entry.form.read(target), content) else [name]
    if isinstance(target, list | deque) and len(target) == len(content):
        return [] if all(map(_is_alike, target, content)) else [name]
    return [name]


def _is_alike(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and type(one) in ATOMS and one == other)


def _shown(path: Path) -> str:
    keys = []
    while path:
        path, key = path
        if key:
            keys.append(str(key))
    return ".".join(reversed(keys))


def _by_state(
    read: Callable[[Any], Any],
    is_same: Callable[[Any, Any], bool],
    write: Callable[[Any, Any], object],
) -> _Form:
    """The form of what gives its whole state, and takes one."""
    return _Form(read, lambda found, content: is_same(read(found), content), write)


def _put_elements_back(found: Any, content: Sequence[Any]) -> None:
    found.clear()
    found.extend(content)


_TENSOR = _Form(_read_tensor, _same_tensor, _put_tensor_back)
_DICT = _Form(_read_items, _same_items, _fill_again)
_LIST = _Form(list, _same_sequence, _put_elements_back)
_EXACT: Final[Mapping[type, _Form]] = {
    dict: _DICT,
    list: _LIST,
    torch.Tensor: _TENSOR,
    Slot: _by_state(Slot.read, is_, Slot.write),
    CellType: _by_state(read_cell, is_, _write_cell),
}
_FORMS: Final[tuple[tuple[type, _Form], ...]] = (
    (torch.Tensor, _TENSOR),
    (dict, _DICT),
    (list, _LIST),
    (set, _Form(set, eq, _fill_again)),
    (deque, _Form(list, _same_sequence, _put_elements_back)),
    (np.ndarray, _Form(_read_array, _same_array, _put_array_back)),
    (bytearray, _Form(bytes, eq, _put_elements_back)),
    (torch.Generator, _by_state(methodcaller("get_state"), torch.equal, torch.Generator.set_state)),
    (random.Random, _by_state(methodcaller("getstate"), eq, random.Random.setstate)),
    (
        np.random.Generator,
        _by_state(attrgetter("bit_generator.state"), _same_text, _put_numpy_state),
    ),
    (
        np.random.RandomState,
        _by_state(
            methodcaller("get_state", legacy=False), _same_text, np.random.RandomState.set_state
        ),
    ),
)


_LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "torch", "numpy", "openwafer"})
# Of what torch keeps in a module, the hooks that run in a pass and the buffers are looked into.
_OF_TORCH: Final = frozenset(vars(nn.Module())) - {
    "_buffers",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
}
# A model has this many objects rarely; beyond, nobody counts calls in them.
MAX_OBJECTS: Final = 50_000


def reached_from(
    roots: Iterable[tuple[str, object]],
    *,
    passes_buffers_over: bool = False,
    max_objects: int = MAX_OBJECTS,
) -> Snapshot:
    """A snapshot of all that the code of ``roots`` (modules, functions, objects) can reach."""
    passed_over = _OF_TORCH | {"_buffers"} if passes_buffers_over else _OF_TORCH
    return Snapshot(roots, _Follower().follow, passed_over, max_objects)


def held_by(model: nn.Module) -> Iterator[object]:
    """What a model's modules hold themselves, closures included; code is not read."""
    follow = _Follower(reads_code=False).follow
    return (found for _, found in walk(model.named_modules(), follow, _OF_TORCH, MAX_OBJECTS))


def draws_beside_torch(module: nn.Module) -> bool:
    """Whether the code of a module can draw from the generators of Python or NumPy."""
    shared = {id(random), id(np.random)}
    owners = {id(random.random.__self__), id(np.random.rand.__self__)}  # type: ignore[attr-defined]
    return any(
        id(found) in shared or id(getattr(found, "__self__", None)) in owners
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
    reached = walk(module.named_modules(), _Follower().follow, _OF_TORCH | {"_buffers"})
    return (found for _, found in reached)


def defaults_of(function: FunctionType) -> list[object]:
    """The default arguments of a function."""
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


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
        wrapped = getattr(found, "__wrapped__", None)
        if wrapped is not None and kind.__module__.startswith("openwafer"):
            yield "", wrapped
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
