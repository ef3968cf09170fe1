"""Makes room for layers that come beside the schedule, whose weights it has not counted."""

from collections.abc import Collection, Iterable, Iterator

from openwafer.training.stream.device.weights import DeviceWeights


def in_the_way(
    weights: DeviceWeights, records: Iterable[str], wanted: Collection[str]
) -> Iterator[str]:
    """Records on the device whose release lets others fit into the capacity of the schedule.

    What the schedule has brought for later comes again when it is used.

    Args:
        weights: on the device.
        records: those that share the capacity.
        wanted: records that a layer needs, on the device already or not.
    """
    held = [record for record in records if weights.holds(record)]
    total = sum(map(weights.num_bytes, {*held, *wanted}))
    for record in held:
        if total <= weights.capacity_bytes:
            return
        if record not in wanted:
            total -= weights.num_bytes(record)
            yield record
