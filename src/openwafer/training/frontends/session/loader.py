"""A script's batches, which tell the session where a step begins and ends."""

from collections.abc import Iterable, Iterator
from typing import Any

from openwafer.training.frontends.scripts.batches import require_iterable
from openwafer.training.frontends.session import program

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of a session: to ask for the next one ends the step.

    All else that is asked of it goes to the batches themselves.

    Args:
        batches: any iterable; a ``torch.utils.data.DataLoader`` mostly.

    Raises:
        OpenwaferError: ``session-loader`` for what cannot be iterated.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        require_iterable(
            batches, "session-loader", "cbtorch.dataloader takes batches to iterate over"
        )
        self._loader = batches

    def __iter__(self) -> Iterator[Any]:
        running = program.running()
        session = None if running is None else running.session
        if running is None or session is None or session.loader is not self:
            yield from self._loader
            return
        for batch in self._loader:
            session.begin_step()
            yield running.brought_to_machine(batch)
            session.mark_step()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a TypeError says so where it has none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
