"""What Python objects hold at one moment: whether it has changed since, and how to put it back.

A snapshot follows containers, and through them whatever else a caller lets it follow. It knows
objects by identity and keeps them alive, so that putting back also undoes what was exchanged. That
of a layer is what it sees and changes beside its arguments, and sees again when it runs again.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter, eq, is_, methodcaller
from types import CellType
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import nn

from openwafer.training.stream.execute.reach import (
    ATOMS,
    MAX_OBJECTS,
    NOTHING,
    PASSED_OVER,
    Follow,
    Path,
    Slot,
    draws_beside_torch,
    following_code,
    read_cell,
    walk,
)
from openwafer.training.torch_private import NormBase, is_fake

# Larger arrays are not copied: nobody counts in them, and a data set must not be held twice.
MAX_ARRAY_BYTES: Final = 64 << 20
# What torch keeps in a module beside what the module's own code puts there.
_OF_TORCH: Final = frozenset(vars(nn.Module())) - {"_buffers"}


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


def _write_cell(cell: CellType, value: object) -> None:
    if value is NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


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


def reached_from(
    roots: Iterable[tuple[str, object]],
    *,
    passes_buffers_over: bool = False,
    max_objects: int = MAX_OBJECTS,
) -> Snapshot:
    """A snapshot of all that the code of ``roots`` (modules, functions, objects) can reach."""
    passed_over = PASSED_OVER | {"_buffers"} if passes_buffers_over else PASSED_OVER
    return Snapshot(roots, following_code(), passed_over, max_objects)


def norms_with_statistics(module: nn.Module) -> list[NormBase]:
    """The modules within one that keep running statistics of what goes through them."""
    return [
        inner
        for inner in module.modules()
        if isinstance(inner, NormBase) and inner.track_running_stats
    ]


class LayerState:
    """Attributes and buffers of a layer's modules: plain values, containers, arrays, tensors.

    Args:
        module: the layer.
        passed_over: what is in its modules and none of its state.

    Attributes:
        is_rehearsed: whether the layer has run a second time as it ran the first.
        refusal: why it could not run again, once that was tried.
    """

    def __init__(self, module: nn.Module, passed_over: frozenset[str] = _OF_TORCH) -> None:
        self._module = module
        self._passed_over = passed_over
        self._latest: Snapshot | None = None
        self._latest_with_tensors: ReferenceType[Snapshot] | None = None
        self.is_rehearsed = False
        # Their kernels write without counting versions up, and fake tensors have nothing else.
        self._keeps_statistics = bool(norms_with_statistics(module))
        self.refusal: str | None = None

    def now(self) -> Snapshot:
        """The present state: the last one while nothing has changed since."""
        held = self._latest_with_tensors
        latest = self._latest if held is None else held()
        if latest is None or self._keeps_statistics or not latest.is_current():
            latest = Snapshot(_held_by(self._module), passed_over=self._passed_over)
            # Copies of tensors take device memory, so that they live only as long as a call's.
            has_tensors = latest.holds_tensors
            self._latest = None if has_tensors else latest
            self._latest_with_tensors = ref(latest) if has_tensors else None
        return latest

    @cached_property
    def draws_beside_torch(self) -> bool:
        """Whether the layer's code can draw from the generators of Python or NumPy."""
        return draws_beside_torch(self._module)

    @contextmanager
    def as_it_was(self, before: Snapshot) -> Iterator[frozenset[int]]:
        """Context in which the layer sees an earlier state; afterwards, the present one again.

        Yields:
            Storages of tensors that are written to for that, as the numbers torch has for them.
        """
        present, beside = self.now(), None
        if present is not before:
            beside = before.again(present)
            before.put_back()
        try:
            yield frozenset() if beside is None else before.storages() | present.storages()
        finally:
            if beside is not None:
                beside.put_back()
            present.put_back()


def _held_by(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, inner in module.named_modules():
        # The dictionaries themselves: what is put back is what they hold.
        yield name, vars(inner)
