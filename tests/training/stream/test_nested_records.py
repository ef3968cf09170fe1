"""Which experts of a layer are on the device together, and which are on their way."""

from collections.abc import Sequence

import pytest
from torch import nn

from openwafer.training.store.layout import slice_name
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.executor import NestedRecords
from openwafer.training.stream.forms.weight_form import forms_of
from openwafer.training.stream.layers import partition
from openwafer.training.stream.records import lay_out_records
from tests.training.stream.small_link import WEIGHT_BYTES, Stacked

SLICES = [slice_name("0.weight", index) for index in range(3)]


class Nested:
    """Three experts in room for some of them.

    Attributes:
        done: which were fetched and which were released, by their numbers.
    """

    def __init__(self, num_together: int) -> None:
        self.done: list[str] = []
        model = nn.Sequential(Stacked())
        split = partition(model, min_layer_bytes=0, sliced={"0.weight": 3})
        layouts = lay_out_records(
            split,
            parameters=dict(model.named_parameters()),
            state_arrays=lambda weight: (),
            keeps_gradients=False,
        )
        self.weights = DeviceWeights(forms_of(model, split.sliced), layouts, CpuDevice())
        self.nested = NestedRecords(split, self.weights, self._fetch, self._release)
        self.nested.capacity_bytes = num_together * WEIGHT_BYTES

    def _fetch(self, record: str) -> None:
        self.weights.take_slot(record)
        self.done.append(f"+{SLICES.index(record)}")

    def _release(self, record: str) -> None:
        self.weights.drop(record)
        self.done.append(f"-{SLICES.index(record)}")

    def use(self, *experts: int) -> str:
        """Use the first, with the others ahead; what was done so far."""
        first, *ahead = (SLICES[expert] for expert in experts)
        self.nested.use(first, ahead)
        return " ".join(self.done)


@pytest.mark.parametrize(
    ("num_together", "uses", "done"),
    [
        (3, [(0, 1, 2)], "+0 +1 +2"),
        (2, [(0, 1, 2)], "+0 +1"),
        (1, [(0, 1, 2)], "+0"),
        (2, [(0,), (1, 2)], "+0 +1 -0 +2"),
        (2, [(0, 1), (1, 2), (2,)], "+0 +1 -0 +2"),
        (1, [(0, 1), (1, 2)], "+0 -0 +1"),
        (2, [(0,), (1,), (0,), (2,)], "+0 +1 -1 +2"),
    ],
)
def test_those_ahead_come_into_room_that_nothing_in_use_needs(
    num_together: int, uses: Sequence[tuple[int, ...]], done: str
) -> None:
    nested = Nested(num_together)
    assert [nested.use(*experts) for experts in uses][-1] == done


def test_what_is_released_at_the_end_of_a_layer_leaves_its_room() -> None:
    nested = Nested(2)
    nested.use(0, 1)
    nested.nested.release_all()
    assert nested.use(2, 0) == "+0 +1 -0 -1 +2 +0"


def test_a_record_larger_than_the_room_comes_alone() -> None:
    nested = Nested(0)
    nested.use(0)
    assert nested.use(1) == "+0 -0 +1"
    assert nested.weights.held_bytes == WEIGHT_BYTES
