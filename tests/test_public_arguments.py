"""Every public entry takes a path as text and as an object, and names the argument that is none.

The entries are found in the public doors, so that a new one is asked, too.
"""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from openwafer.config import Bytes, Size
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import CompileOptions
from openwafer.sdk import compile as compile_layout
from openwafer.training.data import DataSource
from openwafer.training.session import Calibration, ExportFormat, Precision
from openwafer.training.stream import StreamOptions
from openwafer.training.stream.stream_options import PlanInput
from tests.test_house import doors
from tests.training.session.test_step_count import RUN

RECORDS = {
    "Checkpoint",
    "Document",
    "HostMemory",
    "Preparation",
    "PrunedModel",
    "Recipe",
    "Record",
    "TokenDataset",
    "TrainResult",
}
"""What entries return and nobody gives."""
ELSEWHERE = {
    "path_of": "it is what the others call",
    "bytes_of": "it is what the others call",
    "read_host_memory": "a status file of the kernel, for tests of other kernels",
    "create": "the constructor of a store judges the bytes",
    "open": "the constructor of a store judges the bytes",
}
"""Entries that convert nothing themselves, and why."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public callable, and the types of its arguments."""

    name: str
    call: Callable[..., object]
    types: dict[str, object]

    def called_with(self, name: str, value: object) -> str:
        """The error of a call with one argument, other paths "x", the rest None; or its result."""
        others = {
            one.name: "x" if takes_path(self.types.get(one.name)) else None
            for one in inspect.signature(self.call).parameters.values()
            if one.default is one.empty and one.kind is not one.VAR_POSITIONAL
        }
        try:
            return f"returned {type(self.call(**others | {name: value}))}"
        except OpenwaferError as refusal:
            return f"{refusal.diagnostics[0].code}: {refusal.diagnostics[0].message}"
        except Exception as crash:  # noqa: BLE001 - it has met the None of another argument
            return repr(crash)


def parts_of(kind: object) -> Iterator[object]:
    yield kind
    for part in get_args(kind):
        yield from parts_of(part)


def callables_of(name: str, value: object) -> Iterator[tuple[str, Callable[..., object]]]:
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value) and value.__name__ not in RECORDS:
        yield name, value
        for own, method in inspect.getmembers(value, inspect.isroutine):
            if own in vars(value) and not own.startswith("_"):
                yield f"{name}.{own}", method


@cache
def entries() -> tuple[Entry, ...]:
    found = []
    for module, names in doors():
        values = [(name, getattr(import_module(module), name)) for name in names]
        for name, call in (pair for each in values for pair in callables_of(*each)):
            typed = call.__init__ if inspect.isclass(call) else call
            try:
                types = get_type_hints(typed, include_extras=True)
            except (NameError, TypeError):
                continue
            types.pop("return", None)
            found.append(Entry(f"{module}.{name}", call, types))
    return tuple(found)


def takes_path(kind: object) -> bool:
    return any(part is Path or part == os.PathLike[str] for part in parts_of(kind))


def arguments(is_wanted: Callable[[object], bool], *here: str) -> list[Any]:
    """Arguments of entries that are no settings; `here` are tested in spite of their reason."""
    return [
        pytest.param(entry, name, id=f"{entry.name}-{name}")
        for entry in entries()
        for name, kind in entry.types.items()
        if is_wanted(kind) and not dataclasses.is_dataclass(entry.call)
        if entry.name.rpartition(".")[2] in here or entry.name.rpartition(".")[2] not in ELSEWHERE
    ]


PATHS = arguments(takes_path, "create", "open")
SIZES = arguments(lambda kind: kind == Size)


@pytest.mark.parametrize(("entry", "name"), PATHS)
def test_what_is_no_path_is_told_with_the_name_of_its_argument(entry: Entry, name: str) -> None:
    assert entry.called_with(name, 3) == f"argument-path: {name}: expected a path, found 3"


@pytest.mark.parametrize(("entry", "name"), PATHS)
def test_a_path_is_taken_as_text_and_as_an_object(entry: Entry, name: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "here.yaml"
    assert entry.called_with(name, str(path)) == entry.called_with(name, path)


@pytest.mark.parametrize(("entry", "name"), SIZES)
def test_what_is_no_size_is_told_with_the_name_of_its_argument(entry: Entry, name: str) -> None:
    told = f"argument-bytes: {name}: 1.5 is not a whole number of bytes"
    assert entry.called_with(name, 1.5) == told


def settings_classes() -> list[Any]:
    """Dataclasses of the doors that people make, with a field of a path or of bytes."""
    classes = {entry.call for entry in entries() if dataclasses.is_dataclass(entry.call)}
    return sorted(
        (
            cls
            for cls in classes
            if cls is not CompileOptions
            and any(
                takes_path(kind) or Bytes in parts_of(kind)
                for kind in get_type_hints(cls, include_extras=True).values()
            )
        ),
        key=str,
    )


@pytest.mark.parametrize("cls", settings_classes(), ids=lambda cls: cls.__name__)
def test_settings_that_people_make_convert_their_fields(cls: Any) -> None:
    made = [vars(one)["__post_init__"] for one in cls.__mro__ if "__post_init__" in vars(one)]
    assert any("convert_fields" in one.__code__.co_names for one in made)
    assert all("super" in one.__code__.co_names for one in made[:-1])


def test_what_a_caller_knows_of_a_stream_is_no_option_of_its_user() -> None:
    known = {one.name for one in dataclasses.fields(PlanInput)} - {"options"}
    assert known.isdisjoint(one.name for one in dataclasses.fields(StreamOptions))
    with pytest.raises(TypeError, match="unexpected keyword argument 'device_memory_bytes'"):
        StreamOptions(device_memory_bytes=1)  # type: ignore[call-arg]


def test_settings_take_what_people_write() -> None:
    run = dataclasses.replace(RUN, folder="runs", precision="bf16", device_memory=2e9)  # type: ignore[arg-type]
    assert (run.folder, run.precision) == (Path("runs"), Precision.BF16)
    assert run.device_memory == 2_000_000_000
    assert DataSource("text", ["a", Path("b.txt")]).paths == ("a", "b.txt")  # type: ignore[arg-type]
    assert Calibration("a.txt").texts == ("a.txt",)  # type: ignore[arg-type]
    assert ExportFormat(shard_bytes="2GB").shard_bytes == 2_000_000_000  # type: ignore[arg-type]
    assert StreamOptions(host_memory_bytes="1MiB").host_memory_bytes == 2**20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("folder", None, "folder: expected a path, found None"),
        ("law", 3, "law: expected a path, found 3"),
        ("device_memory", 1.5, "device_memory: 1.5 is not a whole number of bytes"),
        ("precision", "fp8", "precision: no such choice: 'fp8'"),
    ],
)
def test_settings_name_the_field_that_has_no_such_value(
    field: str, value: object, told: str
) -> None:
    with pytest.raises(OpenwaferError) as refused:
        dataclasses.replace(RUN, **{field: value})  # type: ignore[arg-type]
    assert refused.value.diagnostics[0].message == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("keep", "activations: expected a mapping, found 'keep'"),
        ({"layers.0": "kept"}, "activations['layers.0']: no such choice: 'kept'"),
    ],
)
def test_options_of_layers_are_a_mapping_to_choices(value: Any, told: str) -> None:
    with pytest.raises(OpenwaferError) as refused:
        StreamOptions(activations=value)
    assert refused.value.diagnostics[0].message == told


def test_options_of_a_compilation_are_converted_where_python_compiles() -> None:
    options = CompileOptions(import_paths=(3,))  # type: ignore[arg-type]
    with pytest.raises(OpenwaferError, match="import_paths: expected a path, found 3"):
        compile_layout("layout.csl", options=options)
