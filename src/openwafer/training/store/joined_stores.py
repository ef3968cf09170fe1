"""Stores that have a share of the records each, as one to read."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.record_access import LentParts


class JoinedStores:
    """See :class:`~openwafer.training.store.record_access.Records`.

    Args:
        stores: of which no two have a record of one name.
    """

    def __init__(self, stores: Sequence[ParameterStore]) -> None:
        self._stores = stores
        self._home = {record: store for store in stores for record in store.layouts}
        self.layouts: dict[str, RecordLayout] = {}
        for store in stores:
            self.layouts.update(store.layouts)

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> LentParts:
        """See :meth:`ParameterStore.borrow`."""
        return self._home[record].borrow(record, parts, read_only=read_only, fresh=fresh)

    def lent(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> AbstractContextManager[LentParts]:
        """See :meth:`ParameterStore.lent`."""
        return self._home[record].lent(record, parts, read_only=read_only, fresh=fresh)

    def close(self) -> None:
        """Close all of them."""
        for store in self._stores:
            store.close()
