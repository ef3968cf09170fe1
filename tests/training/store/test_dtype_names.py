"""Names of dtypes in files."""

import pytest
import torch

from openwafer.training.store.layout import dtype_name, dtype_named
from openwafer.training.store.safetensors_file import DTYPE_NAMES


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_a_name_stands_for_its_dtype(dtype: torch.dtype) -> None:
    assert dtype_named(dtype_name(dtype)) is dtype


def test_names_of_other_things_in_torch_are_refused() -> None:
    with pytest.raises(ValueError, match="torch has no dtype 'nn'"):
        dtype_named("nn")
