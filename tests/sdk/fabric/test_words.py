"""Records and regions of the simulator's state do not overlap."""

import pytest

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Tables, allocate

LENGTHS = {
    "R_": w.ROUTER_WORDS,
    "C_": w.CORE_WORDS,
    "P_": w.PROCESSOR_WORDS,
    "Z_": w.SLEEP_WORDS,
    "O_": w.OPERAND_WORDS,
    "T_": w.THREAD_WORDS,
    "J_": w.JOB_WORDS,
    "F_": w.FIFO_WORDS,
    "L_": w.FILTER_WORDS,
    "I_": w.IMAGE_WORDS,
    "V_": w.VECTOR_WORDS,
    "S_": w.SOURCE_WORDS,
    "G_": w.GLOBAL_WORDS,
}


@pytest.mark.parametrize("prefix", LENGTHS)
def test_words_of_a_record_come_one_after_the_other(prefix: str) -> None:
    words = [number for name, number in vars(w).items() if name.startswith(prefix)]
    assert words == sorted(set(words))
    assert words[-1] < LENGTHS[prefix]


def test_regions_that_bands_share_begin_with_a_page() -> None:
    assert w.SHARED["router"].start % w.PAGE_WORDS == 0
    assert w.OWN["seen"].end <= w.SHARED["router"].start


def test_a_view_has_what_its_region_has() -> None:
    (state,) = allocate(3, 2, 1, 1)
    tables = Tables(state)
    tables.fifo[2, 5, 1] = 7
    assert state[w.FIFO_ROWS + (2 * w.PITCH + 5) * w.FIFO_WORDS + 1] == 7
    assert tables.memory.shape == (6, 4 * w.MEMORY_WORDS)
