"""One function of a file is called on arrays, and gives what numpy gives."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError

FILE = """
param scale: f32 = 1.0;
fn saxpy(a: f32, n: u16, x: [*]f32, y: [*]f32) void {
  for (@range(u16, n)) |i| { y[i] = y[i] + scale * a * x[i]; }
}
fn total(x: *[4]i16) i16 {
  var sum: i16 = 0;
  for (x.*) |value| { sum += value; }
  return sum;
}
task other() void {}
"""
X = np.arange(5, dtype=np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.csl"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_arrays_are_what_the_function_left(file: Path, arch: str) -> None:
    called = wafer.call(file, "saxpy", 2.0, 5, X, np.ones(5, np.float32), arch=arch)
    np.testing.assert_array_equal(called.arrays[0], X)
    np.testing.assert_array_equal(called.arrays[1], 1 + 2 * X)
    assert called.value is None
    assert called.cycles > 5


def test_a_result_is_of_its_type(file: Path) -> None:
    values = np.array([1, -2, 3, 40], np.int16)
    called = wafer.call(file, "total", values)
    assert called.value == 42
    assert called.value.dtype == np.int16


def test_params_of_the_file_are_given(file: Path) -> None:
    called = wafer.call(file, "saxpy", 2.0, 5, X, X, params={"scale": 0.25})
    np.testing.assert_array_equal(called.arrays[1], 1.5 * X)


def test_more_elements_take_more_cycles(file: Path) -> None:
    few, many = (wafer.call(file, "saxpy", 2.0, n, X, X).cycles for n in (1, 5))
    assert many > few


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("saxpi", (), "no function 'saxpi'"),
        ("other", (), "no function 'other'"),
        ("saxpy", (2.0,), "takes 4 arguments, 1 given"),
        ("total", (X.astype(np.float64),), "argument 0 is an array of shape .5,. and type float64"),
        ("total", (X.reshape(1, 5),), r"shape \(1, 5\)"),
        ("total", (X,), "i16"),
        ("saxpy", (2.0, -1, X, X), "u16, from 0 to 65535; got -1"),
    ],
)
def test_what_does_not_fit_is_refused(
    file: Path, name: str, arguments: tuple[float | NDArray[Any], ...], message: str
) -> None:
    with pytest.raises(OpenwaferError, match=message):
        wafer.call(file, name, *arguments)


def test_vendor_modules_are_found() -> None:
    wafer.vendor_modules()
    found = importlib.import_module("cerebras.sdk.runtime.sdkruntimepybind")
    assert found.SdkRuntime.__module__.startswith("openwafer.")
