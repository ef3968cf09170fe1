"""What torch's dispatch modes of this package have in common."""

import sys
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch


def uncompiled() -> AbstractContextManager[object]:
    """Context in which what torch.compile has compiled runs as it was written."""
    # Whoever has compiled anything has imported the compiler, at 80 MB and seconds.
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


class Unguarded:
    """A dispatch mode under which nothing is compiled; to be named before torch's own class.

    Torch would wrap each operator in a guard of its compiler, at twice the cost of counting bytes,
    and import that compiler for it. The compiler would trace the mode itself.
    """

    _stances: list[AbstractContextManager[object]]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[misc]
        vars(self).setdefault("_stances", []).append(uncompiled())
        self._stances[-1].__enter__()
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._stances.pop().__exit__(kind, value, trace)
        return super().__exit__(kind, value, trace)  # type: ignore[misc]
