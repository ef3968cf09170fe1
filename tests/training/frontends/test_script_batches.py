"""Batches of scripts keep their kind where their tensors are replaced."""

from collections import UserDict
from typing import Any

import pytest
import torch

from openwafer.training.frontends.scripts.batches import with_long_integers


class Named(dict[str, Any]):
    """As some loaders give them; torch knows dicts of its own kinds only."""


class Encoding(UserDict[str, Any]):
    """As tokenizers give them."""


@pytest.mark.parametrize("kind", [dict, Named, Encoding])
def test_tensors_in_mappings_of_any_kind_are_converted(kind: Any) -> None:
    ids = torch.tensor([1], dtype=torch.int32)
    batch = kind(ids=ids, inner=kind(labels=[ids], name="a"))
    found = with_long_integers(batch)
    assert (type(found), type(found["inner"]), found["inner"]["name"]) == (kind, kind, "a")
    assert found["ids"].dtype is found["inner"]["labels"][0].dtype is torch.int64
    assert batch["ids"].dtype is batch["inner"]["labels"][0].dtype is torch.int32
