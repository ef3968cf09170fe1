"""What runs PE code for the simulator: native code, or the reference interpreter as its oracle."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

import openwafer.sdk.codegen as codegen
from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, MEMORY_WORDS, Arch
from openwafer.sdk.ir import text
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.ir.elements import element
from openwafer.sdk.ir.interpreter import Interpreter
from openwafer.sdk.ir.stepped import statements_of
from openwafer.sdk.program.environment import choice
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.mailbox import MAILBOX_WORDS
from openwafer.sdk.program.program import Program

ENGINE_VARIABLE: Final = "OPENWAFER_ENGINE"
"""Environment variable that chooses the engine of programs that name none."""

THREADS_VARIABLE: Final = "OPENWAFER_THREADS"
"""Environment variable with the number of threads that simulate a fabric."""
MAX_THREADS: Final = 64
MIN_PES: Final = 512
"""PEs that a thread is worth while for: bands meet twice a cycle."""

_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_uint16),
    ctypes.c_int32,
    ctypes.c_int32,
)
_ELEMENT = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


class EngineKind(StrEnum):
    """The engines."""

    NATIVE = "native"
    INTERPRETER = "interpreter"


class Form(StrEnum):
    """What native code does beside its work."""

    PLAIN = "plain"
    COUNTING = "counting"
    """It counts in the PEs' counters, which have to be there when it runs."""
    STEPPED = "stepped"
    """It can be stopped before each statement."""


@dataclass(frozen=True)
class PeCode:
    """Addresses of the two functions of the mailbox's interface.

    Attributes:
        run_address: of `run`.
        element_address: of `element`.
        alive: what the addresses point into.
    """

    run_address: int
    element_address: int
    alive: Any


def engine_kind_of_environment() -> EngineKind:
    """Return the engine that the environment names, native code otherwise.

    Raises OpenwaferError when there is none of that name.
    """
    return EngineKind(choice(ENGINE_VARIABLE, EngineKind, "engine-unknown"))


def num_threads(asked: int, num_pes: int) -> int:
    """How many threads simulate a fabric: as the environment says, else as many as are of use.

    `asked` is the most that the caller wants. Raises OpenwaferError when the environment names no
    number from 1 to 64.
    """
    given = os.environ.get(THREADS_VARIABLE)
    if given is None:
        return max(1, min(asked, len(os.sched_getaffinity(0)), num_pes // MIN_PES))
    if not given.isdecimal() or not 1 <= int(given) <= MAX_THREADS:
        raise error(
            "thread-count", f"{THREADS_VARIABLE} is {given!r}, not a number from 1 to {MAX_THREADS}"
        )
    return int(given)


def build_engine(
    program: Program,
    kind: EngineKind,
    *,
    depth: Depth = Depth.PLAIN,
    form: Form = Form.PLAIN,
) -> PeCode:
    """Make a program's code ready to run.

    Args:
        program: compiled.
        kind: which engine.
        depth: checked code tells of its mistakes.
        form: of native code.
    """
    if kind is EngineKind.INTERPRETER:
        return _interpret(program.images, program.arch, depth)
    code = codegen.compile_images(
        program.images,
        program.arch,
        depth=depth,
        counts=form is Form.COUNTING,
        statements=statements_of(program.places) if form is Form.STEPPED else (),
    )
    return PeCode(code.run_address, code.element_address, code)


def _interpret(images: Sequence[Image], arch: Arch, depth: Depth) -> PeCode:
    interpreters = [
        Interpreter(
            *(text.parse(image.code, image.name), codegen.entry_splits(image), GENERATIONS[arch]),
            depth=depth,
        )
        for image in images
    ]

    def run(image: int, box: Any, memory: Any, entry: int, is_resume: int) -> int:
        return int(
            interpreters[image].run(
                ctypes.addressof(box.contents),
                np.ctypeslib.as_array(box, (MAILBOX_WORDS,)),
                np.ctypeslib.as_array(memory, (MEMORY_WORDS,)),
                entry,
                is_resume=bool(is_resume),
            )
        )

    functions = _RUN(run), _ELEMENT(element)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    return PeCode(addresses[0], addresses[1], functions)
