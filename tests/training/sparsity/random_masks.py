"""Random masks for Hypothesis: all shapes and densities, empty rows among them."""

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def masks(draw: st.DrawFn, max_rows: int = 9, max_columns: int = 600) -> Tensor:
    """Bool `[rows, columns]`; a share of it is kept, and some rows may keep nothing, some all."""
    rows, columns = draw(st.integers(0, max_rows)), draw(st.integers(0, max_columns))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.9, 1.0]))
    mask = torch.rand(rows, columns, generator=generator) < density
    for row in draw(st.lists(st.integers(0, rows - 1), max_size=3)) if rows else ():
        mask[row] = draw(st.booleans())
    return mask


def random_mask(rows: int, columns: int, sparsity: float, seed: int = 0) -> Tensor:
    """Bool `[rows, columns]` of about that share of zeros."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, columns, generator=generator) >= sparsity
