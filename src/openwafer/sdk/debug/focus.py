"""PEs that a user looks at: a wafer has 850,000, and they are threads of an editor."""

from collections.abc import Iterable, Iterator

from openwafer.sdk.debug.halt import Halt


class Focus:
    """Numbers of PEs, the one that is looked at first."""

    def __init__(self) -> None:
        self._pes: list[int] = []

    def __iter__(self) -> Iterator[int]:
        """Those that stopped last, then those that were named; PE 0 where there are none."""
        return iter(self._pes or [0])

    def put(self, pes: Iterable[int]) -> None:
        """Look at these PEs, and at no others."""
        self._pes = list(dict.fromkeys(pes))

    def add(self, pes: Iterable[int]) -> None:
        """Look at these PEs, too."""
        self.put([*self._pes, *pes])

    def remove(self, pes: Iterable[int]) -> None:
        """Look at them no more."""
        gone = frozenset(pes)
        self.put(pe for pe in self._pes if pe not in gone)

    def follow(self, halt: Halt) -> int:
        """Look at PEs that have stopped, too; gives the one to look at first."""
        pe = halt.pe if halt.pe is not None else next(iter(self))
        self.put([pe, *halt.others, *self._pes])
        return pe
