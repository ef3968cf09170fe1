"""What pruning shows: a bar in a terminal, a plain line for each layer elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from openwafer.training.metrics.host_memory import read_host_memory
from openwafer.training.metrics.units import format_bytes, format_duration


class PruningProgress:
    """Shows what is done while its ``with`` block lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.perf_counter()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def tell(self, text: str, done: int, total: int) -> None:
        """So much is done; ``text`` names the last of it."""
        host = format_bytes(read_host_memory().resident_bytes)
        self._bar.update(
            self._task, completed=done, total=total, description=f"{text}  host {host}"
        )
        if not self._is_live:
            seconds = format_duration(time.perf_counter() - self._start)
            self._console.out(f"{done}/{total}  {text}  {seconds}  host {host}", highlight=False)
