"""The records of layers inside a running layer, such as experts, that share a bounded room."""

from collections.abc import Callable

from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.layers import Partition


class NestedRecords:
    """Which nested records are on the device; the least recently used make room for others.

    Args:
        split: the model's layers.
        weights: slots on the device.
        release: takes a record off the device.

    Attributes:
        capacity_bytes: device bytes for all of them.
    """

    def __init__(
        self, split: Partition, weights: DeviceWeights, release: Callable[[str], None]
    ) -> None:
        self.capacity_bytes = 0
        self._weights = weights
        self._release = release
        self._held: dict[str, None] = {}
        self._names = _records_of(split, is_nested=True) - _records_of(split, is_nested=False)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, record: str) -> bool:
        return record in self._names

    def use(self, record: str) -> None:
        """Count a use of a record that is to come, or is there."""
        if not self._weights.holds(record):
            self._make_room(self._weights.num_bytes(record))
            self._held[record] = None
        elif record in self._held:
            self._held[record] = self._held.pop(record)

    def _make_room(self, num_bytes: int) -> None:
        held = [record for record in self._held if self._weights.holds(record)]
        total = sum(self._weights.num_bytes(record) for record in held)
        for record in held:
            if total + num_bytes <= self.capacity_bytes:
                break
            total -= self._weights.num_bytes(record)
            del self._held[record]
            self._release(record)

    def release_all(self) -> None:
        """Take every nested record off the device."""
        for record in self._held:
            if self._weights.holds(record):
                self._release(record)
        self._held.clear()

    def forget(self) -> None:
        """Know of none; who held them has taken them off."""
        self._held.clear()


def _records_of(split: Partition, *, is_nested: bool) -> set[str]:
    layers = [layer for layer in split.layers if (layer.parent is not None) is is_nested]
    return {record for layer in layers for record in layer.records}
