"""How others read and write records between two steps."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from openwafer.training.store.layout import Part, RecordLayout


class Arrays(Protocol):
    """The arrays of one record: a loan, or a stand-in without memory."""

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """View of one array, of its dtype and shape, on host memory, valid until the release."""


class LentParts(Arrays, Protocol):
    """Parts of one record; see :class:`~openwafer.training.store.lending.Loan`."""

    def wait(self) -> None:
        """Return when the bytes are in memory."""

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """View of all bytes of a part: uint8, one dim of `part_bytes`, valid until the release."""

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """Give the parts back; those in `dirty`, and the fresh ones, were changed."""


class LentRecords(Protocol):
    """Records of which values are read and written, one after the other."""

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        """The records by name."""

    def lent(
        self, record: str, parts: Collection[Part], *, read_only: bool = False
    ) -> AbstractContextManager[Arrays]:
        """Context in which parts of a record can be read, and written unless `read_only`."""


class Records(ABC):
    """A parameter store, or the stores of all ranks of a run as one."""

    @property
    @abstractmethod
    def layouts(self) -> Mapping[str, RecordLayout]:
        """The records by name."""

    @abstractmethod
    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> LentParts:
        """Ask for parts of a record; those in `fresh` are to be overwritten whole."""

    @contextmanager
    def lent(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> Iterator[LentParts]:
        """Context in which parts of a record are in memory; for its arguments see :meth:`borrow`.

        Unless read-only, all of them count as changed at its end, however it ends.
        """
        loan = self.borrow(record, parts, read_only=read_only, fresh=fresh)
        dirty: Collection[Part] = ()
        try:
            loan.wait()
            dirty = () if read_only else parts
            yield loan
        finally:
            loan.release(dirty=dirty)
