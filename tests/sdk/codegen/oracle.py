"""Runs the same module natively and in the reference interpreter, with the same machine around."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import WSE2, Arch
from openwafer.sdk.codegen.native import NativeCode, compile_modules
from openwafer.sdk.codegen.objects import Effort
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.interpreter import Interpreter
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.mailbox import Outcome

Box = NDArray[np.int64]
Memory = NDArray[np.uint16]
HEADER = 'module "test" stack 20000 memory 24576\nplace "a.csl" 1 1 "main"\n'
STACK = 20000
MEMORY_WORDS = 24576
_MOST_REQUESTS = 2000
"""Where a run is cut off."""

_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
)
_ELEMENT = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


class Prepared(TypedDict, total=False):
    """State of the PE before the run."""

    arguments: Sequence[int]
    memory: Memory
    box: dict[int, int]


@dataclass
class Trail:
    """What a run left: outcomes, the mailbox at each, memory and mailbox at the end."""

    outcomes: list[Outcome] = field(default_factory=list)
    requests: list[list[int]] = field(default_factory=list)
    box: Box = field(default_factory=lambda: np.zeros(mailbox.MAILBOX_WORDS, np.int64))
    memory: Memory = field(default_factory=lambda: np.zeros(MEMORY_WORDS, np.uint16))

    @property
    def data(self) -> Memory:
        """Memory below the stack."""
        return self.memory[:STACK]


def read_module(text: str) -> Module:
    """A verified module from the text behind its header."""
    module = parse(HEADER + text)
    verify(module)
    return module


class Native:
    """Native code of modules."""

    def __init__(
        self,
        *modules: Module,
        splits: Sequence[bool] = (),
        arch: Arch = Arch.WSE2,
        effort: Effort = Effort.LIGHT,
        counts: bool = False,
    ) -> None:
        all_splits = [tuple(splits) or (False,) * len(module.entries) for module in modules]
        self.code: NativeCode = compile_modules(
            modules, all_splits, arch, effort=effort, counts=counts
        )
        self._run = _RUN(self.code.run_address)

    def step(self, trail: Trail, entry: int, *, is_resume: bool, image: int = 0) -> Outcome:
        """One call of ``run``."""
        pointers = trail.box.ctypes.data, trail.memory.ctypes.data
        return Outcome(self._run(image, *pointers, entry, int(is_resume)))


def native_element(code: NativeCode) -> Callable[[int, int, int, int], int]:
    """``element`` as a Python function."""
    return _ELEMENT(code.element_address)


def run_native(native: Native, entry: int = 0, **prepared: Unpack[Prepared]) -> Trail:
    """Run an entry to its end; every request gets the answer that the oracle's run gives too."""
    trail = _prepare(prepared)
    return _drive(trail, lambda resume: native.step(trail, entry, is_resume=resume))


def run_interpreter(module: Module, entry: int = 0, **prepared: Unpack[Prepared]) -> Trail:
    """The same in the reference interpreter."""
    trail = _prepare(prepared)
    machine = Interpreter(module, (False,) * len(module.entries), WSE2)
    return _drive(
        trail, lambda resume: machine.run(0, trail.box, trail.memory, entry, is_resume=resume)
    )


def _prepare(prepared: Prepared) -> Trail:
    trail = Trail()
    trail.box[mailbox.RANDOM] = mailbox.RANDOM_SEED
    arguments = prepared.get("arguments", ())
    trail.box[mailbox.ARGUMENTS : mailbox.ARGUMENTS + len(arguments)] = arguments
    memory = prepared.get("memory", np.zeros(0, np.uint16))
    trail.memory[: len(memory)] = memory
    for index, value in prepared.get("box", {}).items():
        trail.box[index] = value
    return trail


def _drive(trail: Trail, step: Callable[[bool], Outcome]) -> Trail:
    for number in range(_MOST_REQUESTS):
        outcome = step(number > 0)
        trail.outcomes.append(outcome)
        if outcome is not Outcome.SUSPENDED:
            return trail
        trail.requests.append([int(word) for word in trail.box[mailbox.REQUEST :]])
        trail.requests[-1].append(int(trail.box[mailbox.PLACE]))
        trail.box[mailbox.RESULT] = (number * 7 + 1) & 0xFFFF
    return trail


def assert_same(native: Trail, oracle: Trail) -> None:
    """Equal outcomes, requests, data, mailbox; places, the stack, a trap's time may differ."""
    assert native.outcomes == oracle.outcomes
    for got, want in zip(native.requests, oracle.requests, strict=True):
        pairs = enumerate(zip(got, want, strict=True), mailbox.REQUEST)
        different = [mailbox_name(index) for index, (a, b) in pairs if a != b]
        assert set(different) <= {"LIMIT"}
    assert np.array_equal(native.data, oracle.data)
    free = {mailbox.PLACE, mailbox.CYCLE if Outcome.TRAPPED in native.outcomes else mailbox.PLACE}
    ahead = () if Outcome.TRAPPED in native.outcomes else range(mailbox.BEATS, mailbox.DRAINS + 1)
    for index in (*range(mailbox.REQUEST), *ahead):
        if index not in free:
            assert native.box[index] == oracle.box[index], mailbox_name(index)


def mailbox_name(index: int) -> str:
    """Name of a word of the mailbox."""
    names = (name for name, value in vars(mailbox).items() if value == index and name.isupper())
    return next(names, str(index))


def assert_agrees(text: str, entry: int = 0, **prepared: Unpack[Prepared]) -> Trail:
    """Run a module's text both ways and compare; gives the native trail."""
    module = read_module(text)
    native = run_native(Native(module), entry, **prepared)
    assert_same(native, run_interpreter(module, entry, **prepared))
    return native
