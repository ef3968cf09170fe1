"""<kernels/fft>: three-dimensional transforms against numpy's."""

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program.program import Program
from tests.sdk.library import rig
from tests.tables import case

Norm = Literal["backward", "ortho", "forward"]
NORMS: tuple[Norm, ...] = ("backward", "ortho", "forward")
REALS = {"f16": np.float16, "f32": np.float32}
# How far a result may be from numpy's, as a part of the largest one: rounding of log2(N^3) steps.
TOLERANCES = {"f16": 5e-3, "f32": 1e-6}

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {width}, .height = {width} }});
const fft = @import_module("<kernels/fft/fft3d_layout>", .{{ .width = {width}, .memcpy = memcpy }});
layout {{
  @set_rectangle({width}, {width});
  fft.FFT_kernel({width}, {size}, {kind});
}}
"""


def compile_transform(size: int, width: int, kind: str, arch: Arch = Arch.WSE3) -> Program:
    text = LAYOUT.format(size=size, width=width, kind=kind)
    return rig.compile_files({"layout.csl": text}, CompileOptions(arch=arch, is_memcpy=True))


def twiddles(size: int, kind: str) -> NDArray[Any]:
    angles = np.pi * np.arange(size // 2) / (size // 2)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(REALS[kind])


def spread(values: NDArray[Any], width: int, kind: str) -> NDArray[Any]:
    """From [z, y, x] to [py, px, z, j, i, (real, imaginary)]."""
    size = len(values)
    per_pe = size // width
    blocks = values.reshape(size, width, per_pe, width, per_pe).transpose(1, 3, 0, 2, 4)
    return np.stack([blocks.real, blocks.imag], axis=-1).astype(REALS[kind])


def collect(device: rig.Device, size: int, width: int) -> NDArray[Any]:
    per_pe = size // width
    shape = (size, per_pe, per_pe, 2)
    rows = [[device.read("fft.X", x, y).reshape(shape) for x in range(width)] for y in range(width)]
    parts = np.array(rows, np.float64)
    blocks: NDArray[Any] = parts[..., 0] + 1j * parts[..., 1]
    return np.asarray(blocks.transpose(2, 0, 3, 1, 4).reshape(size, size, size))


def transformed(
    program: Program, values: NDArray[Any], kind: str, call: tuple[str, *tuple[int, ...]]
) -> NDArray[Any]:
    device, size, width = rig.load(program), len(values), program.width
    parts = spread(values, width, kind)
    for y in range(width):
        for x in range(width):
            device.write("fft.twiddles", twiddles(size, kind), x, y)
            device.write("fft.X", parts[y, x], x, y)
    device.start(*call)
    return collect(device, size, width)


def numbers(size: int) -> NDArray[Any]:
    generator = np.random.default_rng(3)
    real, imaginary = generator.normal(size=(2, size, size, size)).astype(np.float16)
    return np.asarray(real.astype(np.float64) + 1j * imaginary)


def assert_near(got: NDArray[Any], want: NDArray[Any], kind: str) -> None:
    assert np.abs(got - want).max() <= TOLERANCES[kind] * np.abs(want).max()


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_transform(4, 2, "f32")


@pytest.mark.parametrize("norm", range(3))
def test_a_transform_is_numpys_in_each_norm(program: Program, norm: int) -> None:
    values = numbers(4)
    got = transformed(program, values, "f32", ("csfftExecC2C", norm, 0))
    assert_near(got, np.fft.fftn(values, norm=NORMS[norm]), "f32")


@pytest.mark.parametrize("norm", [case(n, by_default=n == 1) for n in range(3)])
def test_an_inverse_transform_is_numpys_in_each_norm(program: Program, norm: int) -> None:
    values = numbers(4)
    got = transformed(program, values, "f32", ("csfftExecC2C", norm, 1))
    assert_near(got, np.fft.ifftn(values, norm=NORMS[norm]), "f32")


def test_real_numbers_are_transformed(program: Program) -> None:
    values = numbers(4).real
    got = transformed(program, values, "f32", ("csfftExecR2C", 0))
    assert_near(got, np.fft.fftn(values), "f32")


def test_the_spectrum_of_real_numbers_gives_them_back(program: Program) -> None:
    values = numbers(4).real
    got = transformed(program, np.fft.fftn(values), "f32", ("csfftExecC2R", 0))
    assert_near(got, values, "f32")


@pytest.mark.parametrize(
    ("size", "width", "kind", "arch"),
    [
        case(2, 1, "f32", Arch.WSE3, by_default=True),
        case(8, 1, "f32", Arch.WSE2, by_default=True),
        case(8, 2, "f16", Arch.WSE3, by_default=False),
        case(8, 4, "f32", Arch.WSE2, by_default=False),
        case(4, 4, "f16", Arch.WSE2, by_default=True),
    ],
)
def test_a_transform_of_any_shape_is_numpys(size: int, width: int, kind: str, arch: Arch) -> None:
    values = numbers(size)
    program = compile_transform(size, width, kind, arch)
    got = transformed(program, values, kind, ("csfftExecC2C", 0, 0))
    assert_near(got, np.fft.fftn(values), kind)


def test_a_size_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="the size of the transform is a power of two"):
        compile_transform(6, 2, "f32")
