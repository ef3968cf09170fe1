"""Tells where a traced step calls other operators than the first time.

A machine records a step once and repeats it; here a step runs each time, so that what differs then
would differ from such a machine's results, too. What a model and its optimizers do inside is their
own, and nothing is paid for it: seen is what a step calls around them, and with which shapes.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

import openwafer
from openwafer.diagnostics import Diagnostic, Severity, tell
from openwafer.training.torch_private import current_function_mode

_TORCHS: Final = str(Path(torch.__file__).parent)
# A stream takes the place of what optimizers do, from the first forward on.
_UNSEEN: Final = (str(Path(openwafer.__file__).parent), str(Path(torch.optim.__file__).parent))
# Attributes of tensors, which no machine would record.
_READS: Final = frozenset({"__get__", "dim", "size", "numel", "is_floating_point", "is_complex"})


class _Call(NamedTuple):
    name: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.name if self.shape is None else f"{self.name} of the shape {self.shape}"


def traced_code(step: Callable[..., Any]) -> CodeType:
    """The code of a step, below what decorators have put around it."""
    inner = inspect.unwrap(step)
    called = inner if hasattr(inner, "__code__") else type(inner).__call__
    code: CodeType = called.__code__
    return code


class StepWatch(TorchFunctionMode):
    """A context around each call of a traced step; the first one is what others are compared with.

    Args:
        step: the code of the function that is traced.
    """

    def __init__(self, step: CodeType) -> None:
        super().__init__()
        self._step = step
        self._known: list[_Call] | None = None
        self._seen: list[_Call] = []
        self._place = ""
        self._is_told = False
        self._num_pauses = 0
        self._is_away = False

    def pause(self, *_: object) -> None:
        """See nothing until :meth:`resume`; what a script has put above it stays in its place."""
        self._num_pauses += 1
        if self._num_pauses == 1 and current_function_mode() is self:
            self._is_away = True
            self.__exit__(None, None, None)

    def resume(self, *_: object) -> None:
        """See again what is called, when as often called as :meth:`pause`."""
        self._num_pauses -= 1
        if self._num_pauses == 0 and self._is_away:
            self._is_away = False
            self.__enter__()  # type: ignore[no-untyped-call]

    def end_pauses(self) -> None:
        """See again, also behind a call that has raised, of which no hook tells the end."""
        self._num_pauses = min(self._num_pauses, 1)
        if self._num_pauses:
            self.resume()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator, and note it where the step itself has called it."""
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if not self._is_told and name not in _READS:
            self._note(name, found, sys._getframe(1))  # noqa: SLF001 - no public way to a caller
        return found

    def _note(self, name: str, found: Any, frame: FrameType | None) -> None:
        place = ""
        while frame is not None and frame.f_code is not self._step:
            file = frame.f_code.co_filename
            if file.startswith(_UNSEEN):
                return
            if not place and not file.startswith(_TORCHS):
                place = f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back
        if frame is None:
            return
        self._place = place or f"{Path(self._step.co_filename).name}:{frame.f_lineno}"
        self._seen.append(_Call(name, tuple(found.shape) if torch.is_tensor(found) else None))
        known, number = self._known, len(self._seen)
        if known is not None and known[number - 1 : number] != self._seen[-1:]:
            self._tell(f"calls {self._seen[-1]}", known[number - 1 : number])

    def compare(self) -> None:
        """The step is over: keep what it called, or tell what is missing; once for a step."""
        known, seen, self._seen = self._known, self._seen, []
        if known is None:
            self._known = seen
        elif not self._is_told and len(seen) < len(known):
            self._tell("ends", known[len(seen) : len(seen) + 1])

    def _tell(self, does: str, before: Sequence[_Call]) -> None:
        self._is_told = True
        first = f"{before[0]} was called" if before else "the step had ended"
        finding = Diagnostic(
            Severity.WARNING,
            "present-step-changed",
            f"the step {does} where {first} the first time",
            notes=(f"at {self._place}", "a machine would repeat the first one"),
            help="let all steps call the same: torch.where for conditions, lists for generators, "
            "drop_last for batches",
        )
        tell((finding,))
