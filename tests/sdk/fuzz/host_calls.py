"""Random calls of the host API on a small program: what is wrong with them is a diagnostic."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.runtime import SdkRuntime
from openwafer.sdk.compat.transfer_enums import MemcpyDataType, MemcpyOrder

_INTEGERS = (-(2**40), -2, -1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 24576, 2**31, 2**32, 2**64)
_NUMBERS = (*_INTEGERS, 0.5, -1.5, 1e300, float("nan"), float("inf"), True)
_NAMES = ("A", "ptr_A", "scale", "flags", "echo", "", "B", "\0", "a" * 300)
_DTYPES = (np.uint32, np.uint32, np.float32, np.int32, np.uint16, np.float64, np.uint8, np.bool_)
_MOST_ELEMENTS = 64


class HostCalls:
    """One run of a program and the calls that are made of it."""

    def __init__(self, random: Random, folder: Path) -> None:
        self._random = random
        self._runner = SdkRuntime(str(folder))
        self._tasks: list[Any] = []
        self.made: list[str] = []

    def begin(self) -> None:
        """Load and run, as a rule."""
        if self._random.random() < 0.9:
            self._runner.load()
        if self._random.random() < 0.9:
            self._try(self._runner.run)

    def make(self) -> None:
        """Make one call."""
        runner = self._runner
        calls: tuple[Callable[[], Any], ...] = (
            *(self._copy_to, self._copy_to, self._copy_from, self._copy_from, self._launch),
            *(self._strided, self._broadcast, self._wait),
            lambda: runner.get_id(self._name()),
            lambda: runner.call(self._name(), [self._integer() for _ in range(self._few())]),
            lambda: runner.read_symbol(self._integer(), self._integer(), self._name()),
            lambda: runner.send(self._name(), self._array()),
            lambda: runner.receive(self._integer(), self._array()),
            lambda: runner.get_port_id(self._name()),
        )
        self._try(self._random.choice(calls))

    def end(self) -> None:
        """Stop, whatever state the run is in."""
        self._try(self._runner.stop)

    def _try(self, call: Callable[[], Any]) -> None:
        with suppress(OpenwaferError):
            call()

    def _few(self) -> int:
        return self._random.randrange(3)

    def _integer(self) -> Any:
        kind = self._random.choice((int, int, int, np.int64, np.uint16))
        number = self._random.choice(_INTEGERS)
        return number if kind is int or abs(number) >= 2**16 else kind(max(number, 0))

    def _name(self) -> str:
        return self._random.choice(_NAMES)

    def _array(self, size: int | None = None) -> Any:
        kind = self._random.choice(_DTYPES)
        if size is None or not 0 <= size <= _MOST_ELEMENTS:
            size = self._random.randrange(_MOST_ELEMENTS)
        return self._laid_out(np.arange(size).astype(kind))

    def _laid_out(self, array: Any) -> Any:
        """The same elements as another view."""
        match self._random.randrange(6):
            case 0:
                return array.reshape(1, -1)
            case 1:
                return np.repeat(array, 2)[::2]
            case 2:
                array.flags.writeable = False
                return array
            case 3:
                return array.reshape(-1, 2).T if array.size % 2 == 0 else array
            case _:
                return array

    def _region(self, steps: int = 0) -> tuple[int, ...]:
        if self._random.random() < 0.5:
            return tuple(self._integer() for _ in range(5 + steps))
        width, height = self._random.randrange(1, 3), self._random.randrange(1, 3)
        return (0, 0, width, height, self._random.randrange(1, 3), *[1] * steps)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "streaming": self._random.random() < 0.3,
            "data_type": self._random.choice(list(MemcpyDataType)),
            "order": self._random.choice(list(MemcpyOrder)),
            "nonblock": self._random.random() < 0.5,
        }
        return {name: value for name, value in options.items() if self._random.random() < 0.8}

    def _transfer(self, method: Callable[..., Any], *, steps: int = 0) -> None:
        region = self._region(steps)
        array = self._array(int(region[2]) * int(region[3]) * int(region[4]))
        self.made.append(f"{method.__name__} {array.dtype}{array.shape} {region}")
        self._tasks.append(method(self._integer(), array, *region, **self._options()))

    def _copy_to(self) -> None:
        self._transfer(self._runner.memcpy_h2d)

    def _strided(self) -> None:
        self._transfer(self._runner.memcpy_h2d_stride, steps=2)

    def _broadcast(self) -> None:
        runner = self._runner
        self._transfer(
            self._random.choice((runner.memcpy_h2d_rowbcast, runner.memcpy_h2d_colbcast))
        )

    def _copy_from(self) -> None:
        def method(number: int, array: Any, *region: int, **options: Any) -> Any:
            return self._runner.memcpy_d2h(array, number, *region, **options)

        self._transfer(method)

    def _launch(self) -> None:
        given = [self._random.choice(_NUMBERS) for _ in range(self._few())]
        key = self._random.choice((self._name(), self._integer()))
        self.made.append(f"launch {key!r} {given}")
        self._tasks.append(self._runner.launch(key, *given, nonblock=self._random.random() < 0.5))

    def _wait(self) -> None:
        if self._tasks:
            task = self._random.choice(self._tasks)
            self._random.choice((self._runner.task_wait, self._runner.is_task_done))(task)
