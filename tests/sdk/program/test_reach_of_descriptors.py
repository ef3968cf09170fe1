"""How far a descriptor reaches is how far a walk over its elements gets."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.program import descriptor as dsd
from tests.examples import examples

Dims = list[tuple[int, int]]
DIMS = st.lists(st.tuples(st.integers(1, 4), st.integers(-5, 5)), min_size=1, max_size=4)


def walked(dims: Dims, length: int) -> tuple[int, int]:
    """Lowest and highest word of a walk that begins at 0.

    Args:
        dims: extent and stride of each, innermost first; the outermost that moves has the step.
        length: number of elements.
    """
    word, index, seen = 0, [0] * len(dims), [0]
    for _ in range(length - 1):
        for dim, (extent, stride) in enumerate(dims):
            index[dim] = (index[dim] + 1) % extent
            if index[dim]:
                word += stride
                break
        seen.append(word)
    return min(seen), max(seen)


@examples(100)
@given(DIMS, st.data())
def test_it_is_that_of_a_walk_in_one_to_four_dims(dims: Dims, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, prod(extent for extent, _ in dims)))
    words = [0] * dsd.DSD4_WORDS
    words[dsd.WORD_KIND], words[dsd.WORD_EXTENT], words[dsd.WORD_ELEMENT] = 4, len(dims), 1
    for dim, (extent, stride) in enumerate(dims):
        words[dsd.WORD_EXTENTS4 + dim], words[dsd.WORD_STRIDES4 + dim] = extent, stride & 0xFFFF
    assert dsd.reach(words, 1, length) == walked(dims, length)


@examples(100)
@given(st.integers(1, 40), st.integers(-9, 9), st.sampled_from([1, 2]))
def test_it_is_that_of_a_walk_along_a_line(length: int, stride: int, num_words: int) -> None:
    words = [0] * dsd.DSD_WORDS
    words[dsd.WORD_KIND], words[dsd.WORD_EXTENT], words[dsd.WORD_ELEMENT] = 1, length, 1
    words[dsd.WORD_STRIDE] = stride & 0xFFFF
    assert dsd.reach(words, num_words, length) == walked([(length, stride * num_words)], length)
