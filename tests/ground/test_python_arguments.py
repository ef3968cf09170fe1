"""Public entries take paths, sizes and choices as people write them, and refuse others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from openwafer.config import bytes_of, choice_of, path_of
from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.one_shot import Pruning, PruningMethod
from openwafer.training.stream.stream_options import FabricOptions


@pytest.mark.parametrize("size", ["2KiB", 2048, 2048.0])
def test_a_size_is_a_text_or_a_whole_number(size: str | float) -> None:
    assert bytes_of(size, "device_memory") == 2048


@pytest.mark.parametrize("path", ["a/b", Path("a/b"), Path("a") / "b"])
def test_a_path_is_a_text_or_an_object(path: str | Path) -> None:
    assert path_of(path, "folder") == Path("a/b")


def test_a_method_is_named_by_its_text() -> None:
    assert Pruning(0.5, "wanda").method is PruningMethod.WANDA  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: bytes_of(1.5, "device_memory"), "device_memory: 1.5 is not a whole number"),
        (lambda: bytes_of(-1, "device_memory"), "device_memory: -1 is not a whole number"),
        (lambda: bytes_of("2 loads", "x"), "x: '2 loads' is not a byte size"),
        (lambda: bytes_of(None, "x"), "x: expected a number of bytes, found None"),  # type: ignore[arg-type]
        (lambda: bytes_of(True, "x"), "x: expected a number of bytes, found True"),
        (lambda: bytes_of(float("nan"), "x"), "x: nan is not a whole number"),
        (lambda: bytes_of(float("inf"), "x"), "x: inf is not a whole number"),
        (lambda: path_of(3, "folder"), "folder: expected a path, found 3"),  # type: ignore[arg-type]
        (lambda: path_of(b"a", "folder"), "folder: expected a path, found b'a'"),  # type: ignore[arg-type]
        (lambda: choice_of("wand", PruningMethod, "method"), "method: no such choice: 'wand'"),
        (lambda: FabricOptions(precision="f8"), "precision: no such choice: 'f8'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_argument_is_told_with_its_name(
    refused: Callable[[], object], message: str
) -> None:
    with pytest.raises(OpenwaferError) as found:
        refused()
    assert message in found.value.diagnostics[0].message
