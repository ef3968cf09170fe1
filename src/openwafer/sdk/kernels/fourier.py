"""Fourier transforms in one, two and three dims on a square of PEs."""

from dataclasses import dataclass
from enum import StrEnum
from math import log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, gamma, named_precision
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_memory,
    check_rectangle,
    compiled,
    known,
    known_arch,
    last_end,
)

_ONCE_CYCLES: Final = 74
"""Of a launch: the norm, the clock's three looks, and the copy of what it says."""
_PASS_CYCLES: Final = 15
"""Of a pass over one dim, beside its operations."""
_MEETING: Final = 2 * ONE_TURN
"""Of reads of both halves of an array, which begin at the same word of rows of equal parity."""
_FACTOR_TURNS: Final = {Precision.F32: ONE_TURN + 1, Precision.F16: 2 * ONE_TURN}
"""Of reads of numbers and their factors: one in four meets, and of f16 all of a row."""
_EXCHANGE_CYCLES: Final = 43
"""Of the instructions of an exchange, and the loads of its operations, beside its messages."""
_ALONE_CYCLES: Final = 9
"""Of an exchange with no other PE."""
_MESSAGE_CYCLES: Final = 16
"""Of a message of another PE beside its words: a turn of the loop and two operations' loads."""
_SHALLOW_CYCLES: Final = 1.4
"""Of a word through an input queue of two, the only one that is left for a fourth way of WSE-2."""
_BLOCK_CYCLES: Final = 8
"""Of the loop over blocks that turns them along a row, beside the operation."""


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
        parts = 2 * 2 * self.length * self._pencils + 2 * self.length
        return parts * self.precision.given.itemsize + CODE_BYTES

    @property
    def _pencils(self) -> int:
        return self.tile[0] ** 2

    @property
    def cycles(self) -> int:
        """Predicted cycles of a forward transform: passes, and two transpositions for each dim but
        the first."""
        signed = 2 * self._operation("fmul", 1, self.length // 2, ONE_TURN, 2)
        taken = _ONCE_CYCLES + signed + self.num_dims * self.pass_cycles
        return taken + 2 * sum(map(self.transposition_cycles, range(self.num_dims - 1)))

    @property
    def pass_cycles(self) -> int:
        """Predicted cycles of a pass over one dim: stages of five operations, and one of two."""
        half, num_stages = self.length * self._pencils, self.length.bit_length() - 1
        taken = _PASS_CYCLES + 2 * self._operation("fadd", 1, half, _MEETING)
        if num_stages % 2:
            # The last stage ends where it began, so differences are moved behind the sums.
            taken += self._operation("fmov", 1, half, ONE_TURN, num_registers=2)
        for stage in range(num_stages - 1):
            num_factors = self.length >> (stage + 1)
            line = half // num_factors
            is_narrow = self.precision is Precision.F16
            pair_turns = ONE_TURN if is_narrow else _FACTOR_TURNS[self.precision]
            taken += 3 * self._operation("fadd", num_factors, line, _MEETING)
            taken += self._operation("fmul", num_factors, line, _FACTOR_TURNS[self.precision])
            taken += self._operation("fmul", half // 2, 2, pair_turns)
        return taken

    def transposition_cycles(self, axis: int) -> int:
        """Predicted cycles of a transposition along rows of PEs, or along columns.

        Args:
            axis: 0 along rows, 1 along columns.
        """
        n, of_pe = self.width, self.tile[0]
        own = vector_cycles(VECTOR_OPS["mov32"], self._num_words // n, GENERATIONS[self.arch])
        taken = own + self._exchange_cycles(axis)
        if of_pe == 1 or axis == 1:
            num_lines = 1 if of_pe == 1 else self.length * of_pe
            line = 2 * self.length * self._pencils // num_lines
            return taken + self._operation("fmov", num_lines, line, ONE_TURN, num_registers=2)
        turned = self._operation("fmov", of_pe**3, 2, ONE_TURN, num_registers=2)
        return taken + n * (turned + _BLOCK_CYCLES)

    def _exchange_cycles(self, axis: int) -> int:
        """Of the PE in the middle of a line, which lets most blocks pass, or of the line, whose PEs
        get rid of their own messages one behind the other each way."""
        n, timing = self.width, GENERATIONS[self.arch].timing
        if n == 1:
            return _ALONE_CYCLES
        before, block = (n - 1) // 2, self._num_words // n
        back = (n - 1 - before) * (before + 1) * block
        words = (n - 1) * block + before * (n - before) * block + back
        line = (n - 1) * (n * block + timing.hop_cycles + 2 * timing.ramp_cycles)
        if axis == 1 and self.arch is Arch.WSE2:
            words += round((_SHALLOW_CYCLES - 1) * back)
            line += round((_SHALLOW_CYCLES - 1) * (n - 1) * n * block / 2)
        return _EXCHANGE_CYCLES + max(words + (n - 1) * _MESSAGE_CYCLES, line)

    @property
    def _num_words(self) -> int:
        """Wavelets of all numbers of a PE."""
        return 2 * self.length * self._pencils * self.precision.given.itemsize // 4

    def _operation(
        self,
        name: str,
        num_lines: int,
        line: int,
        turns: int,
        num_registers: int = 3,
    ) -> int:
        """Cycles of a vector operation on lines, each of which begins with a beat of its own."""
        op = VECTOR_OPS[name + ("h" if self.precision is Precision.F16 else "s")]
        generation = GENERATIONS[self.arch]
        width = op.rates[generation.arch]
        filled = num_lines * width * -(-line // width)
        shape = VectorShape(turns=turns, num_registers=num_registers)
        return vector_cycles(op, filled, generation, shape)

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

    @takes_operands
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


@takes_operands
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


@takes_operands
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
