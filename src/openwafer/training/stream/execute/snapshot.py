"""What Python objects hold at one moment: whether it has changed since, and how to put it back.

A snapshot follows containers, and through them whatever else a caller lets it follow. It knows
objects by identity and keeps them alive, so that putting back also undoes what was exchanged.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from types import CellType
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
        """Objects that do not hold what they held, each with that.

        Args:
            waits: compares the values of tensors on a device, too, and not just their versions.
        """
        for entry in self._entries.values():
            if not entry.is_same() and _differences(entry, waits=waits):
                yield entry.target, entry.content

    def without(self, targets: AbstractSet[int]) -> "Snapshot":
        """This snapshot, but for objects of these identities."""
        rest = Snapshot(())
        rest._entries = {key: one for key, one in self._entries.items() if key not in targets}
        return rest

    def __add__(self, other: "Snapshot") -> "Snapshot":
        both = Snapshot(())
        both._entries = self._entries | other._entries
        return both

    def again(self, other: "Snapshot") -> "Snapshot":
        """The objects of this snapshot that are not in another one, as they are now."""
        again, known = Snapshot(()), other.targets()
        again._entries = {
            key: entry._replace(content=entry.form.read(entry.target))
            for key, entry in self._entries.items()
            if key not in known
        }
        return again

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


def _put_items_back(found: dict[Any, Any], content: dict[Any, Any]) -> None:
    found.clear()
    found.update(content)


def _same_sequence(found: Sequence[Any], content: Sequence[Any]) -> bool:
    return len(found) == len(content) and all(map(is_, found, content))


def _put_set_back(found: set[Any], content: set[Any]) -> None:
    found.clear()
    found.update(content)


def _put_deque_back(found: deque[Any], content: Sequence[Any]) -> None:
    found.clear()
    found.extend(content)


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


def _same_numpy_state(found: Any, content: Any) -> bool:
    return repr(found.bit_generator.state) == repr(content)


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
        return list(dict.fromkeys(_joined(name, key) for key in changed))
    if isinstance(target, torch.Tensor) and waits:
        return [] if torch.equal(target, content[0]) else [name]
    if isinstance(target, torch.Tensor) and not _is_on_host(target):
        return [name] if version_of(target) != content[1] else []
    if isinstance(target, Slot | CellType):
        return [] if _is_alike(entry.form.read(target), content) else [name]
    if isinstance(target, list | deque) and len(target) == len(content):
        return [] if all(map(_is_alike, target, content)) else [name]
    return [name]


def _joined(name: str, key: object) -> str:
    return ".".join(filter(None, (name, key if isinstance(key, str) else "")))


def _is_alike(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and type(one) in ATOMS and one == other)


def _shown(path: Path) -> str:
    keys = []
    while path:
        path, key = path
        if key:
            keys.append(str(key))
    return ".".join(reversed(keys))


_TENSOR = _Form(_read_tensor, _same_tensor, _put_tensor_back)
_DICT = _Form(_read_items, _same_items, _put_items_back)
_LIST = _Form(list, _same_sequence, lambda found, content: found.__setitem__(slice(None), content))
_EXACT: Final[Mapping[type, _Form]] = {
    dict: _DICT,
    list: _LIST,
    torch.Tensor: _TENSOR,
    Slot: _Form(Slot.read, lambda found, content: found.read() is content, Slot.write),
    CellType: _Form(read_cell, lambda found, content: read_cell(found) is content, _write_cell),
}
_FORMS: Final[tuple[tuple[type, _Form], ...]] = (
    (torch.Tensor, _TENSOR),
    (dict, _DICT),
    (list, _LIST),
    (set, _Form(set, lambda found, content: found == content, _put_set_back)),
    (deque, _Form(list, _same_sequence, _put_deque_back)),
    (
        np.ndarray,
        _Form(
            lambda array: array.copy() if array.nbytes <= MAX_ARRAY_BYTES else None,
            _same_array,
            _put_array_back,
        ),
    ),
    (
        bytearray,
        _Form(
            bytes,
            lambda found, content: bytes(found) == content,
            lambda found, content: found.__setitem__(slice(None), content),
        ),
    ),
    (
        torch.Generator,
        _Form(
            lambda found: found.get_state(),
            lambda found, content: torch.equal(found.get_state(), content),
            lambda found, content: found.set_state(content),
        ),
    ),
    (
        random.Random,
        _Form(
            lambda found: found.getstate(),
            lambda found, content: found.getstate() == content,
            lambda found, content: found.setstate(content),
        ),
    ),
    (
        np.random.Generator,
        _Form(lambda found: found.bit_generator.state, _same_numpy_state, _put_numpy_state),
    ),
    (
        np.random.RandomState,
        _Form(
            lambda found: found.get_state(legacy=False),
            lambda found, content: repr(found.get_state(legacy=False)) == repr(content),
            lambda found, content: found.set_state(content),
        ),
    ),
)
