"""The parameter store: names, bytes and update rules, in DRAM and on disk."""

from openwafer.training.store.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
)
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions, Tier

__all__ = [
    "ArraySpec",
    "Checkpoint",
    "ParameterStore",
    "Part",
    "RecordLayout",
    "StoreOptions",
    "Tier",
    "lay_out",
    "list_checkpoints",
    "load_checkpoint",
    "read_checkpoint",
]
