"""Splits any module tree into streamed layers.

A *layer* is a module whose weights cross the link together when its ``forward`` is called. The
elements of module lists are layers; so are the remaining modules that hold weights (embeddings,
heads). Inside a layer, the elements of a list of experts are layers of their own, fetched when the
router calls them. A weight used by several layers (tied weights) has a record of its own; a weight
that no layer owns stays on the device and is called *pinned*.

Experts that a model holds in one weight are *slices* of it. Each has a record and is nested in the
weight's layer, as a module would be. No module's call fetches it, but the layer's code, which takes
it from the weight.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from torch import nn

from openwafer.diagnostics import error
from openwafer.training.store.layout import slice_name, whole_name

PINNED = "(pinned)"
SHARED_PREFIX = "shared:"


@dataclass(frozen=True)
class Layer:
    """One streamed layer.

    Attributes:
        name: path of the module in the model; also the name of its record in the store.
        parameters: names of the parameters its own record holds.
        shared: records of tied weights that it needs beside its own.
        parent: the layer inside which this one is called, or ``None``.
        slice_of: the weight of which this is one slice; ``None`` for a module.
    """

    name: str
    parameters: tuple[str, ...]
    shared: tuple[str, ...] = ()
    parent: str | None = None
    slice_of: str | None = None

    @cached_property
    def records(self) -> tuple[str, ...]:
        """Records that must be on the device while the layer runs."""
        own = (self.name,) if self.parameters else ()
        return own + self.shared


@dataclass(frozen=True)
class Partition:
    """A model split into layers.

    Attributes:
        layers: every layer, parents before the layers nested in them, in module order.
        records: parameter names by record; a parameter is in exactly one record.
    """

    layers: tuple[Layer, ...]
    records: Mapping[str, tuple[str, ...]]

    @cached_property
    def record_of(self) -> Mapping[str, str]:
        """The record of each parameter."""
        return {name: record for record, names in self.records.items() for name in names}

    @property
    def modules(self) -> tuple[Layer, ...]:
        """The layers that are modules."""
        return tuple(layer for layer in self.layers if layer.slice_of is None)

    @cached_property
    def sliced(self) -> frozenset[str]:
        """The weights whose slices are layers."""
        return frozenset(layer.slice_of for layer in self.layers if layer.slice_of is not None)

    @cached_property
    def inner(self) -> Mapping[str, Sequence[Layer]]:
        """Layers by the one in which they are called."""
        inner: dict[str, list[Layer]] = {}
        for layer in self.layers:
            if layer.parent is not None:
                inner.setdefault(layer.parent, []).append(layer)
        return inner

    @property
    def pinned(self) -> tuple[str, ...]:
        """Parameters that stay on the device through a step."""
        return self.records.get(PINNED, ())


def partition(
    model: nn.Module,
    *,
    patterns: Sequence[str] = (),
    max_layer_bytes: int | None = None,
    min_layer_bytes: int = 64 * 1024,
    sliced: Mapping[str, int] = MappingProxyType({}),
) -> Partition:
    """Split ``model`` into layers.

    Args:
        model: any module; its parameters may be on the meta device.
        patterns: paths or globs (``"encoder.block.*"``) of modules that are layers; given
            patterns replace the automatic choice where they match, and what they leave is split
            automatically. A module list stands for its elements.
        max_layer_bytes: a larger layer is split into its children, where it has several.
        min_layer_bytes: a smaller one outside a module list is pinned instead.
        sliced: weights whose slices are layers, with their numbers of slices.

    Raises:
        OpenwaferError: a pattern matches no module that holds weights.
    """
    size = partial(_bytes_without, [model.get_parameter(name) for name in sliced])
    paths = _layer_paths(model, patterns, max_layer_bytes, min_layer_bytes, size)
    owners = _owners(model, paths)
    sharers: dict[str, set[str]] = {}
    for alias, canonical in _canonical_names(model).items():
        sharers.setdefault(canonical, set()).add(owners.get(alias, PINNED))
    records: dict[str, list[str]] = {}
    shared: dict[str, list[str]] = {path: [] for path in paths}
    for name, users in sharers.items():
        if PINNED in users:
            records.setdefault(PINNED, []).append(name)
        elif len(users) == 1:
            records.setdefault(next(iter(users)), []).append(name)
        else:
            record = SHARED_PREFIX + name
            records[record] = [name]
            for user in users:
                shared[user].append(record)
    layers = tuple(
        Layer(path, tuple(records.get(path, ())), tuple(shared[path]), parent)
        for path, parent in paths.items()
    )
    held = {record: tuple(names) for record, names in records.items()}
    # Before layers without records go: one may hold nothing but experts.
    return _without_empty(_slice(Partition(layers, held), sliced))


def _slice(split: Partition, sliced: Mapping[str, int]) -> Partition:
    """The partition with slices for the weights that one layer alone has, and no nested one."""
    records, nested = dict(split.records), dict[str, list[Layer]]()
    owners = {layer.name: layer for layer in split.layers if layer.parent is None}
    for name, num_slices in sliced.items():
        record = split.record_of[name]
        if record in owners:
            records[record] = tuple(held for held in records[record] if held != name)
            slices = [slice_name(name, index) for index in range(num_slices)]
            records |= {one: (one,) for one in slices}
            made = (Layer(one, (one,), parent=record, slice_of=name) for one in slices)
            nested.setdefault(record, []).extend(made)
    layers = []
    for layer in split.layers:
        layers.append(replace(layer, parameters=records.get(layer.name, ())))
        layers += nested.get(layer.name, ())
    return Partition(tuple(layers), {record: held for record, held in records.items() if held})


def unsliced(split: Partition, names: Collection[str]) -> Partition:
    """The same partition, with these weights whole in their layers again."""
    owner = {layer.slice_of: layer.parent for layer in split.layers if layer.slice_of in names}
    records = dict(split.records)
    for name, parent in owner.items():
        assert name is not None
        assert parent is not None
        records[parent] = (*records.get(parent, ()), name)
    layers = tuple(
        replace(layer, parameters=records.get(layer.name, ()))
        for layer in split.layers
        if layer.slice_of not in owner or layer.slice_of is None
    )
    kept = {record: held for record, held in records.items() if whole_name(record) not in owner}
    return Partition(layers, kept)


def pin(split: Partition, names: Sequence[str]) -> Partition:
    """The same partition with ``names`` moved from their layers to the pinned record."""
    moved = set(names)
    records = {
        record: tuple(name for name in held if name not in moved)
        for record, held in split.records.items()
    }
    records[PINNED] = split.pinned + tuple(name for name in names if name not in split.pinned)
    records = {record: held for record, held in records.items() if held}
    layers = (
        replace(
            layer,
            parameters=records.get(layer.name, ()),
            shared=tuple(record for record in layer.shared if record in records),
        )
        for layer in split.layers
    )
    return _without_empty(Partition(tuple(layers), records))


def _without_empty(split: Partition) -> Partition:
    """Leave out layers that stream nothing; a module nested in one of them stands by itself."""
    around_slices = {layer.parent for layer in split.layers if layer.slice_of is not None}
    kept = [layer for layer in split.layers if layer.records or layer.name in around_slices]
    names = {layer.name for layer in kept}
    layers = (layer if layer.parent in names else replace(layer, parent=None) for layer in kept)
    return Partition(tuple(layers), split.records)


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of the distinct parameters below ``module``."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _bytes_without(passed_over: Sequence[nn.Parameter], module: nn.Module) -> int:
    held = {id(parameter): parameter.nbytes for parameter in module.parameters()}
    return sum(held.values()) - sum(held.get(id(parameter), 0) for parameter in passed_over)


def _layer_paths(
    model: nn.Module,
    patterns: Sequence[str],
    max_bytes: int | None,
    min_bytes: int,
    size: Callable[[nn.Module], int],
) -> dict[str, str | None]:
    """Paths of the layers with their parents, parents first."""
    chosen = _matches(model, patterns)
    paths: dict[nn.Module, tuple[str, str | None]] = {}
    for path, module, in_list in _units(model, "", chosen):
        for unit_path, unit in _split_large(path, module, max_bytes, size):
            if not in_list and unit_path not in chosen and parameter_bytes(unit) < min_bytes:
                continue
            # A module that is in the model twice is one layer, by its first path.
            paths.setdefault(unit, (unit_path, None))
            for expert in _experts(unit):
                place = f"{unit_path}.{expert}", unit_path
                paths.setdefault(unit.get_submodule(expert), place)
    return dict(paths.values())


def _matches(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    chosen: set[str] = set()
    for pattern in patterns:
        found = {
            path
            for path, module in model.named_modules()
            if path and fnmatchcase(path, pattern) and _has_parameters(module)
        }
        if not found:
            raise error(
                "layer-pattern-unmatched",
                f"the layer pattern {pattern!r} matches no module that holds weights",
                notes=tuple(f"a module of this model: {path}" for path in _some_paths(model)),
                help="give a module path or a glob over module paths",
            )
        chosen |= found
    return chosen


def _some_paths(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if path and _has_parameters(module)][:5]


def _units(module: nn.Module, path: str, chosen: set[str]) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield (path, module, is an element of a list) for every layer below ``module``."""
    is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if not _has_parameters(child):
            continue
        if child_path in chosen and not _is_list(child):
            yield child_path, child, True
        elif _holds_layers(child, child_path, chosen, is_element=is_list):
            yield from _units(child, child_path, chosen)
        else:
            yield child_path, child, is_list


def _holds_layers(module: nn.Module, path: str, chosen: set[str], *, is_element: bool) -> bool:
    """Whether the layers lie below this module, so that it is none itself."""
    if any(other.startswith(path + ".") for other in chosen):
        return True
    if _is_list(module):
        return True
    if is_element and not isinstance(module, nn.Sequential):
        return False
    return _contains_list(module)


def _contains_list(module: nn.Module) -> bool:
    return any(_is_list(inner) and _has_parameters(inner) for inner in module.modules())


def _is_list(module: nn.Module) -> bool:
    """Whether the module is never called, only its elements are."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def _split_large(
    path: str, module: nn.Module, max_bytes: int | None, size: Callable[[nn.Module], int]
) -> Iterator[tuple[str, nn.Module]]:
    children = [(name, child) for name, child in module.named_children() if _has_parameters(child)]
    is_small = max_bytes is None or size(module) <= max_bytes or len(children) < 2
    if is_small and not _is_list(module):
        yield path, module
        return
    for name, child in children:
        yield from _split_large(f"{path}.{name}", child, max_bytes, size)


def _experts(module: nn.Module) -> list[str]:
    """Paths, below ``module``, of lists of like modules that hold most of its weights."""
    total = parameter_bytes(module)
    for path, inner in module.named_modules():
        if isinstance(inner, nn.ModuleList) and len(inner) > 1:
            kinds = {type(element) for element in inner}
            if len(kinds) == 1 and parameter_bytes(inner) * 2 > total:
                return [f"{path}.{index}" for index in range(len(inner))]
    return []


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter, mapped to the first name of the same tensor."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _owners(model: nn.Module, paths: Mapping[str, str | None]) -> dict[str, str]:
    """The innermost layer that each parameter name lies in."""
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = {modules[path]: path for path in paths}
    owners: dict[str, str] = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        around = (modules[".".join(parts[:end])] for end in range(len(parts) - 1, 0, -1))
        owner = next((layers[module] for module in around if module in layers), None)
        if owner is not None:
            owners[name] = owner
    return owners


WHOLE: Final = "runs_whole"
"""Attribute of modules that leave layers, or tokens, out; while it is set, they leave none out."""


def leaves_out(model: nn.Module) -> bool:
    """Whether the model may leave layers or tokens out, and says so."""
    return any(WHOLE in vars(module) for module in model.modules())


def run_whole(model: nn.Module) -> None:
    """Let every layer run on every token from now on, as far as the model's modules know of it."""
    for module in model.modules():
        if WHOLE in vars(module):
            setattr(module, WHOLE, True)
