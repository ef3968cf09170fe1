"""Checkpoints of the vendor's format, version 0.5: HDF5 files of named tensors and numbers.

A state is a structure of dicts, lists and tuples. Its leaves have the names of their ways from the
root, joined by dots; a tensor is a data set of its leaf's name, and what all others are stands in
an attribute of the file. docs/formats/mdl-checkpoint.md describes the format.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from openwafer.diagnostics import error

VERSION: Final = 0.5
MAGIC: Final = b"\x89HDF\r\n\x1a\n"
_RELEASE: Final = "2.10.0"
_LEAF: Final = "*"
_SCALARS: Final = {
    bool: ("ScalarSerializer", "scalar_value"),
    int: ("ScalarSerializer", "scalar_value"),
    float: ("ScalarSerializer", "scalar_value"),
    str: ("StringSerializer", "string_value"),
    type(None): ("NoneSerializer", "none_value"),
}
_MAPPINGS: Final[Mapping[str, type[dict[Any, Any]]]] = {
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
}
_SEQUENCES: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.set": set,
}


@dataclass(frozen=True)
class _Node:
    """A container of a state, or, without a kind, a leaf."""

    kind: str | None
    keys: tuple[Any, ...]
    children: tuple["_Node", ...]

    @classmethod
    def of(cls, value: Any) -> "_Node":
        if isinstance(value, Mapping):
            kind = "collections.OrderedDict" if isinstance(value, OrderedDict) else "builtins.dict"
            return cls(kind, tuple(value), tuple(map(cls.of, value.values())))
        for kind, container in _SEQUENCES.items():
            if type(value) is container:
                return cls(kind, tuple(range(len(value))), tuple(map(cls.of, value)))
        return cls(None, (), ())

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "_Node":
        children = tuple(map(cls.read, written["children_spec"]))
        kind = written["type"]
        keys = range(len(children)) if kind not in _MAPPINGS else json.loads(written["context"])
        if kind is not None and kind not in _MAPPINGS and kind not in _SEQUENCES:
            raise _unreadable(f"a container of the type {kind}")
        return cls(kind, tuple(keys), children)

    def written(self) -> dict[str, Any]:
        context = None if self.kind is None else "null"
        if self.kind in _MAPPINGS:
            context = json.dumps(list(self.keys))
        children = [child.written() for child in self.children]
        return {"type": self.kind, "context": context, "children_spec": children}

    def spec(self) -> list[Any]:
        """What the file has of it: a readable form, and the exact one as text."""
        return [self.filled(lambda _name: _LEAF), json.dumps([1, self.written()])]

    def filled(self, leaf: Callable[[str], Any], way: tuple[str, ...] = ()) -> Any:
        """The structure, with what a function makes of the leaves' names."""
        if self.kind is None:
            return leaf(".".join(way))
        values = [
            child.filled(leaf, (*way, str(key)))
            for key, child in zip(self.keys, self.children, strict=True)
        ]
        if self.kind in _MAPPINGS:
            return _MAPPINGS[self.kind](zip(self.keys, values, strict=True))
        return _SEQUENCES[self.kind](values)


def _leaves(value: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        named = list(value.items())
    elif type(value) in _SEQUENCES.values():
        named = list(enumerate(value))
    else:
        yield ".".join(way), value
        return
    for key, child in named:
        yield from _leaves(child, (*way, str(key)))


def write(path: Path, state: Any) -> None:
    """Write a state.

    Args:
        path: a new file.
        state: dicts, lists, tuples and sets of tensors, numbers, texts and None.

    Raises:
        OpenwaferError: ``present-checkpoint-library`` without h5py; ``present-checkpoint-value``
            for a leaf of another type, or two of one name.
    """
    seen: dict[int, str] = {}
    names: set[str] = set()
    with library().File(path, "w") as file:
        file.attrs["__spec__"] = json.dumps(_Node.of(state).spec(), indent=4)
        file.attrs["__version__"] = VERSION
        file.attrs["__cstorch_version__"] = _RELEASE
        for name, value in _leaves(state):
            if name in names:
                raise _unwritable(name, "is the name of two leaves")
            names.add(name)
            is_tensor = isinstance(value, torch.Tensor)
            alias = seen.setdefault(id(value), name) if is_tensor else name
            metadata = _metadata(name, value) if alias == name else _link(alias)
            if is_tensor and alias == name:
                _write_tensor(file, name, value, metadata)
            described = {
                "__spec__": _Node.of({name: None}).spec(),
                "__objects__": [name],
                f"{name}.__metadata__": metadata,
            }
            file.attrs[f"{name}.__metadata__"] = json.dumps(described, indent=4)
        file.attrs["__SUCCESS__"] = True


def _metadata(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        return {
            "__TORCH__": True,
            "shapes": [list(value.shape)],
            "dtypes": [str(value.dtype)],
            "__TYPE__": "TorchTensorSerializer",
            "__NUMPY__": True,
        }
    if type(value) not in _SCALARS:
        raise _unwritable(name, f"is a {type(value).__name__}")
    kind, key = _SCALARS[type(value)]
    held = {} if value is None else {key: value}
    return {**held, "__TYPE__": kind, "__NONE__": True}


def _link(alias: str) -> dict[str, Any]:
    return {"key": alias, "__LINKED__": True, "__TYPE__": "LinkedObject", "__NONE__": True}


def _write_tensor(file: Any, name: str, tensor: torch.Tensor, metadata: dict[str, Any]) -> None:
    held = tensor.detach().cpu().contiguous()
    # HDF5 has no bf16: its bits stand there as integers.
    bits = held.view(torch.int16) if held.dtype is torch.bfloat16 else held
    data = file.create_dataset(name, data=bits.numpy())
    data.attrs.update({**metadata, "shapes": [tuple(tensor.shape)]})


def is_mdl(path: Path) -> bool:
    """Whether a file is HDF5."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Any:
    """The state of a file, in host memory.

    Raises:
        OpenwaferError: ``present-checkpoint-library`` without h5py; ``present-checkpoint`` for an
            older version, a file that was not finished, and what is not a tensor, a number, a text
            or None.
    """
    with library().File(path, "r") as file:
        attributes = file.attrs
        if float(attributes.get("__version__", 0.1)) != VERSION:
            raise _unreadable(
                f"the version {attributes.get('__version__', 0.1)} of a checkpoint, and this is "
                f"{VERSION}"
            )
        if not attributes.get("__SUCCESS__", False):
            raise _unreadable("a checkpoint that was not written to its end")
        _, exact = json.loads(attributes["__spec__"])
        version, root = json.loads(exact)
        if version != 1:
            raise _unreadable(f"a structure of the version {version}")
        known: dict[str, Any] = {}
        return _Node.read(root).filled(lambda name: _read_leaf(file, name, known))


def _read_leaf(file: Any, name: str, known: dict[str, Any]) -> Any:
    if name in known:
        return known[name]
    described = json.loads(file.attrs[f"{name}.__metadata__"])
    metadata = described.get(f"{name}.__metadata__", {})
    match metadata.get("__TYPE__"):
        case "ScalarSerializer":
            value = metadata["scalar_value"]
        case "StringSerializer":
            value = metadata["string_value"]
        case "NoneSerializer":
            value = None
        case "LinkedObject":
            value = _read_leaf(file, metadata["key"], known)
        case "TorchTensorSerializer" if name in file:
            value = _read_tensor(file, name, metadata["dtypes"][0])
        case other:
            raise _unreadable(f"{name!r}, of the type {other}")
    known[name] = value
    return value


def _read_tensor(file: Any, name: str, dtype: str) -> torch.Tensor:
    try:
        array = file[name][...]
    except OSError as refusal:
        raise error(
            "present-checkpoint-library",
            f"{name!r} cannot be read: {refusal}",
            help="install what it is compressed with: pip install hdf5plugin",
        ) from refusal
    bits = torch.from_numpy(array)
    return bits.view(torch.bfloat16) if dtype == "torch.bfloat16" else bits


def library() -> Any:
    """h5py, with the compressions that the vendor's files have.

    Raises:
        OpenwaferError: ``present-checkpoint-library`` where it is not installed.
    """
    # Brings the compressions that the vendor's files have.
    with suppress(ImportError):
        import_module("hdf5plugin")
    try:
        return import_module("h5py")
    except ImportError as missing:
        raise error(
            "present-checkpoint-library",
            f"a checkpoint of the .mdl format is HDF5, and h5py is not installed: {missing}",
            help="install it: pip install 'openwafer[mdl]'; torch.save needs nothing",
        ) from missing


def _unwritable(name: str, what: str) -> Exception:
    return error(
        "present-checkpoint-value",
        f"{name!r} of the state {what}",
        help="save tensors, numbers, texts and None, in dicts, lists and tuples",
    )


def _unreadable(what: str) -> Exception:
    return error(
        "present-checkpoint",
        f"the file has {what}",
        help="load it with the release that wrote it, and write it by torch.save",
    )
