"""The records of layers inside a running layer, such as experts, that share a bounded room."""

from collections.abc import Callable, Iterable, Sequence

from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.layers import Partition


class NestedRecords:
    """Which nested records are on the device; the least recently used make room for others.

    Args:
        split: the model's layers.
        weights: slots on the device.
        fetch: begins to bring a record to the device.
        release: takes a record off the device.

    Attributes:
        capacity_bytes: device bytes for all of them.
    """

    def __init__(
        self,
        split: Partition,
        weights: DeviceWeights,
        fetch: Callable[[str], None],
        release: Callable[[str], None],
    ) -> None:
        self.capacity_bytes = 0
        self._weights = weights
        self._fetch = fetch
        self._release = release
        # Bytes by record, that of the last use last.
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self._names = _records_of(split, is_nested=True) - _records_of(split, is_nested=False)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, record: str) -> bool:
        return record in self._names

    def use(self, record: str, ahead: Sequence[str] = ()) -> None:
        """Begin the fetch of a record that is not there.

        Args:
            record: used now.
            ahead: those that may be used next, in that order. Their fetches begin as well, as far
                as there is room without them and the record that is used.
        """
        if record in self._held:
            self._held[record] = self._held.pop(record)
        elif not self._weights.holds(record):
            self._release_oldest(self._surplus(record), self._held)
            self._begin(record)
        for one in ahead:
            if one in self._names and not self._weights.holds(one):
                left = [held for held in self._held if held != record and held not in ahead]
                surplus = self._surplus(one)
                if surplus > sum(map(self._held.__getitem__, left)):
                    break
                self._release_oldest(surplus, left)
                self._begin(one)

    def _begin(self, record: str) -> None:
        self._held[record] = self._weights.num_bytes(record)
        self._held_bytes += self._held[record]
        self._fetch(record)

    def _surplus(self, record: str) -> int:
        """Bytes over the capacity if a record came."""
        return self._held_bytes + self._weights.num_bytes(record) - self.capacity_bytes

    def _release_oldest(self, num_bytes: int, records: Iterable[str]) -> None:
        """Release the first of these records until so many bytes are free, or none is left."""
        for record in tuple(records):
            if num_bytes <= 0:
                break
            num_bytes -= self._held[record]
            self._drop(record)

    def _drop(self, record: str) -> None:
        self._held_bytes -= self._held.pop(record)
        self._release(record)

    def release_all(self) -> None:
        """Take every nested record off the device."""
        for record in tuple(self._held):
            self._drop(record)

    def forget(self) -> None:
        """Know of none; who held them has taken them off."""
        self._held.clear()
        self._held_bytes = 0


def _records_of(split: Partition, *, is_nested: bool) -> set[str]:
    layers = [layer for layer in split.layers if (layer.parent is not None) is is_nested]
    return {record for layer in layers for record in layer.records}
