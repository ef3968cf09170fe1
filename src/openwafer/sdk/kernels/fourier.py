"""Fourier transforms in one, two and three dims on a square of PEs."""

from dataclasses import dataclass
from enum import StrEnum
from math import log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import takes_arrays
from openwafer.sdk.kernels.precision import Precision, gamma, named_precision
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_finite,
    check_memory,
    check_rectangle,
    compiled,
    known,
    known_arch,
    last_end,
)

_PASS_CYCLES: Final = 168
"""Of a pass over one dim, beside its rows and butterflies."""
_ROW_CYCLES: Final = 69
"""Of a row of it, beside four turns of a loop."""
_BUTTERFLY_CYCLES: Final = 97
"""Of the instructions of a butterfly beside its elements."""
_ELEMENT_CYCLES: Final = {Precision.F32: 8.5, Precision.F16: 3.2}
"""Of a butterfly of one pencil."""
_SCATTER_CYCLES: Final = (1030, -810)
"""Of a transposition along a line, for each of its PEs and once, beside its words."""
_MOVE_CYCLES: Final = (55, 35)
"""Of the moves that turn a pencil's block, along rows and along columns of PEs."""


class Norm(StrEnum):
    """What is scaled, in the words of ``numpy.fft``, in the order of ``<kernels/fft/pe>``."""

    BACKWARD = "backward"
    ORTHO = "ortho"
    FORWARD = "forward"


@dataclass(frozen=True)
class FftPlan:
    """How transforms are done, before anything is compiled, by ``<kernels/fft/fft3d>``.

    A cube of numbers lies on the square, each PE with all numbers along its last dim. Along the
    other two, transforms are a transposition between the PEs of a line each.

    Attributes:
        length: numbers along each dim, a power of two.
        num_dims: of a transform; the cube's others number the transforms.
        width: rows and columns of PEs, a divisor of `length`.
        arch: the generation.
        precision: of the real and imaginary parts, f32 or f16.
    """

    length: int
    num_dims: int
    width: int
    arch: Arch
    precision: Precision

    @property
    def most_transforms(self) -> int:
        """That the cube has room for; where fewer are given, zeros are transformed, too."""
        return int(self.length ** (3 - self.num_dims))

    @property
    def tile(self) -> tuple[int, int, int]:
        """Numbers of a PE along the three dims."""
        of_pe = self.length // self.width
        return of_pe, of_pe, self.length

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        pencils = self.tile[0] ** 2
        parts = 2 * 2 * self.length * pencils + self.length + 4 * pencils
        return parts * self.precision.given.itemsize + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: passes, and two transpositions for each dim but the first."""
        n, of_pe = self.length, self.tile[0]
        row = _ROW_CYCLES + 4 * GENERATIONS[self.arch].timing.loop_cycles
        butterfly = _BUTTERFLY_CYCLES + _ELEMENT_CYCLES[self.precision] * of_pe**2
        taken = self.num_dims * (_PASS_CYCLES + row * n + n / 2 * log2(n) * butterfly)
        words = self.width * (self.width - 1) * of_pe**3 * self.precision.given.itemsize // 2
        of_pes, once = _SCATTER_CYCLES
        for of_move in _MOVE_CYCLES[: self.num_dims - 1]:
            turned = self.width * of_pe**2 * (of_move + 2 * of_pe)
            taken += 2 * (of_pes * self.width + once + words + turned)
        return round(taken)

    def error_bound(
        self, values: NDArray[Any], *, is_inverse: bool = False, norm: str = Norm.BACKWARD
    ) -> NDArray[np.float64]:
        """Bound of the Euclidean norm of each transform's error.

        Higham, theorem 24.2: a part of ``k e / (1 - k e)`` of the result's norm, with k levels of
        butterflies and ``e = u + gamma(4) (sqrt(2) + u)`` of the factors and products of each; two
        roundings more for each dim that is scaled, and what underflows.

        Args:
            values: (transforms, ...), finite, each transform of `num_dims` dims.
            is_inverse: whether it is the inverse.
            norm: ``"backward"``, ``"ortho"`` or ``"forward"``.
        """
        dtype, flat = self.precision.sums, np.abs(values.reshape(len(values), -1)).astype(float)
        count = flat.shape[1]
        unit = float(np.finfo(dtype).eps) / 2
        levels = self.num_dims * log2(self.length)
        each = unit + gamma(4, dtype) * (np.sqrt(2) + unit)
        share = levels * each / (1 - levels * each) + gamma(2 * self.num_dims, dtype)
        # How much longer the result is than what is given.
        scale = {Norm.BACKWARD: 0.0, Norm.ORTHO: 0.5, Norm.FORWARD: 1.0}[Norm(norm)]
        gain = float(count) ** (0.5 - (1 - scale if is_inverse else scale))
        lost = 8 * (levels + 1) * float(np.finfo(dtype).smallest_subnormal) * count
        may_overflow = 2 * flat.sum(1) > float(np.finfo(dtype).max)
        return np.where(may_overflow, np.inf, share * gain * np.linalg.norm(flat, axis=1) + lost)

    @takes_arrays
    def run(
        self,
        values: NDArray[Any],
        *,
        is_inverse: bool = False,
        norm: str = Norm.BACKWARD,
        check: bool = False,
    ) -> Result:
        """Transform on the simulated wafer.

        Args:
            values: (transforms, ...), complex64, finite, each transform of `num_dims` dims.
            is_inverse: whether to do the inverse.
            norm: ``"backward"``, ``"ortho"`` or ``"forward"``.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or are not finite, or too many.
        """
        kind = known("norm is", norm, Norm)
        self._check(values)
        n, of_pe = self.length, self.tile[0]
        more = n**3 - values.size
        cube = np.pad(values.ravel(), (0, more)).reshape(n, n, n)
        blocks = cube.reshape(self.width, of_pe, self.width, of_pe, n).transpose(0, 2, 4, 1, 3)
        parts = np.stack([blocks.real, blocks.imag], -1).astype(self.precision.given)
        square = (self.width, self.width)
        with compiled("fft", self.arch, self.params).run(check=check) as run:
            run["twiddle_array"] = np.broadcast_to(self._factors(), (*square, n))
            run["X"] = parts.reshape(*square, -1)
            run.launch("csfftExecC2C", list(Norm).index(kind), int(is_inverse))
            found = run["X"].astype(np.float32).reshape(*square, n, of_pe, of_pe, 2)
            whole = found.transpose(0, 3, 1, 4, 2, 5).reshape(n, n, n, 2)
            numbers = np.ascontiguousarray(whole).view(np.complex64).ravel()[: values.size]
            taken = last_end(run["fft_time"][..., 0].astype(np.int64), self.arch)
            return Result(numbers.reshape(values.shape), taken)

    def _check(self, values: NDArray[Any]) -> None:
        if values.dtype != np.complex64:
            raise error(
                "kernel-dtype",
                f"values are {values.dtype}; a transform takes complex64",
                help="convert them, as in values.astype(np.complex64)",
            )
        shape = (self.length,) * self.num_dims
        if values.shape[1:] != shape or not 1 <= len(values) <= self.most_transforms:
            raise error(
                "kernel-shape",
                f"values have the shape {values.shape}; the plan is for 1 to "
                f"{self.most_transforms} transforms of {shape}",
                help="make a plan for this shape, or give fewer transforms",
            )
        check_finite("values", values)

    def _factors(self) -> NDArray[Any]:
        half = self.length // 2
        angles = np.pi * np.arange(half) / half
        return np.stack([np.cos(angles), np.sin(angles)], 1).astype(self.precision.given).ravel()

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "width": self.width,
            "n": self.length,
            "num_dims": self.num_dims,
            "is_f16": self.precision is Precision.F16,
        }


def plan_fft(
    length: int,
    num_dims: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> FftPlan:
    """Plan Fourier transforms on a square of PEs.

    Args:
        length: numbers along each dim, a power of two, 2 or more.
        num_dims: of a transform: 1, 2 or 3.
        size: rows and columns of PEs, equal, and a divisor of `length`.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: of the parts of complex numbers, ``"f32"`` or ``"f16"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory, or there is no such transform.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if numbers.is_widened:
        what = f"a transform has no sums, so {numbers} says nothing"
        raise error("kernel-precision", what, help="take f16 or f32")
    if num_dims not in (1, 2, 3):
        raise error("option-value", f"num_dims is {num_dims}", help="give 1, 2 or 3")
    if length < 2 or length & (length - 1):
        what = f"{length} numbers along a dim"
        raise error("kernel-length", what, help="give a power of two from 2 on")
    if size[0] != size[1] or length % size[0]:
        raise error(
            "kernel-rectangle",
            f"{size[0]} rows and {size[1]} columns of PEs for {length} numbers along a dim",
            help="give a square whose side divides the length",
        )
    plan = FftPlan(length, num_dims, size[0], generation, numbers)
    check_memory(plan.memory_bytes, f"a tile of {plan.tile} complex numbers of {numbers}")
    return plan


@takes_arrays
def fft(
    values: NDArray[Any],
    size: tuple[int, int],
    *,
    num_dims: int = 1,
    is_inverse: bool = False,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> Result:
    """Fourier transforms over the last dims of an array, as ``numpy.fft.fftn`` and ``ifftn``.

    The norm of a transform's error is at most some ``log2(count) * 7 u`` of the result's; the
    plan's ``error_bound`` says it with what underflows. u is 2**-24, of f16 2**-11. Other norms
    than ``"backward"`` are an option of the plan's ``run``.

    Args:
        values: complex64, of `num_dims` dims, all of one length that is a power of two, or with one
            dim before them that numbers transforms.
        size: rows and columns of PEs, equal, and a divisor of the length.
        num_dims: of a transform: 1, 2 or 3.
        is_inverse: whether to do the inverse.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"`` or ``"f16"``, to which the parts are rounded.

    Raises:
        OpenwaferError: shape or type do not fit, values are not finite, or the square or its memory
            is too small.
    """
    if values.ndim not in (num_dims, num_dims + 1):
        what = f"values have the shape {values.shape}"
        raise error("kernel-shape", what, help=f"give {num_dims} dims, or one more for transforms")
    plan = plan_fft(values.shape[-1], num_dims, size, arch=arch, precision=precision)
    given = values if values.ndim > num_dims else values[None]
    result = plan.run(given, is_inverse=is_inverse)
    return Result(result.values.reshape(values.shape), result.cycles)
