import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import (
    ArraySpec,
    Part,
    gaps,
    index_by_name,
    lay_out,
    place_arrays,
)
from openwafer.training.store.store_file import plan_file, store_file_bytes
from tests.training.store.example_records import example_layouts

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64]
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
specs = st.lists(st.builds(ArraySpec, st.just("a"), st.sampled_from(DTYPES), shapes))


@given(specs)
def test_arrays_are_aligned_and_do_not_overlap(wanted: list[ArraySpec]) -> None:
    places = place_arrays(wanted)
    starts = [place.offset_bytes for place in places]
    ends = [0] + [place.end_bytes for place in places]
    assert all(start % 64 == 0 and start >= end for start, end in zip(starts, ends, strict=False))


@given(specs)
def test_gaps_and_arrays_cover_a_part_exactly(wanted: list[ArraySpec]) -> None:
    layout = lay_out("record", weights=wanted)
    covered = sum(end - start for start, end in gaps(layout, Part.WEIGHTS))
    covered += sum(spec.num_bytes for spec in wanted)
    assert covered == layout.part_bytes(Part.WEIGHTS)


def test_a_part_is_padded_to_whole_pages() -> None:
    layout = lay_out("record", weights=[ArraySpec("a", torch.float32, (1025,))])
    assert layout.part_bytes(Part.WEIGHTS) == 8192


def test_a_part_without_arrays_has_no_bytes() -> None:
    assert lay_out("record").part_bytes(Part.STATES) == 0


def test_weights_and_states_of_one_slot_are_contiguous_on_disk() -> None:
    [layout] = example_layouts(1)
    offsets = plan_file([layout]).offsets
    weights_end = [
        start + layout.part_bytes(Part.WEIGHTS) for start in offsets["layer0", Part.WEIGHTS]
    ]
    assert weights_end == list(offsets["layer0", Part.STATES])


def test_the_file_holds_two_slots_of_weights_and_states_and_one_of_gradients() -> None:
    [layout] = example_layouts(1)
    weights, states, gradients = (layout.part_bytes(part) for part in Part)
    assert store_file_bytes([layout]) == 2 * (weights + states) + gradients


def test_an_array_named_twice_is_refused() -> None:
    twice = [lay_out(name, weights=[ArraySpec("tied", torch.float32, (1,))]) for name in "ab"]
    with pytest.raises(OpenwaferError, match=r"array of the weights named more than once: tied"):
        index_by_name(twice)


def test_a_weight_and_its_gradient_may_share_a_name() -> None:
    spec = ArraySpec("w", torch.float32, (1,))
    assert list(index_by_name([lay_out("r", weights=[spec], gradients=[spec])])) == ["r"]


def test_an_unknown_array_is_answered_with_the_known_ones() -> None:
    [layout] = example_layouts(1)
    with pytest.raises(OpenwaferError, match=r"no array 'bias' among its weights") as caught:
        layout.place("bias", Part.WEIGHTS)
    assert "layer0.weight, layer0.bias, layer0.none" in str(caught.value)
