"""The parameter store: names, bytes and update rules, in DRAM and on disk."""

from openwafer.training.store.checkpoint import (
    keep_last,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from openwafer.training.store.checkpoint_index import Checkpoint, read_checkpoint
from openwafer.training.store.layout import ArrayPlace, ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.store.loan import Loan
from openwafer.training.store.options import DiskTransfer, StoreOptions, Traffic
from openwafer.training.store.parameter_store import ParameterStore, Placement, Tier
from openwafer.training.store.store_file import store_file_bytes

__all__ = [
    "ArrayPlace",
    "ArraySpec",
    "Checkpoint",
    "DiskTransfer",
    "Loan",
    "ParameterStore",
    "Part",
    "Placement",
    "RecordLayout",
    "StoreOptions",
    "Tier",
    "Traffic",
    "keep_last",
    "lay_out",
    "list_checkpoints",
    "load_checkpoint",
    "read_checkpoint",
    "save_checkpoint",
    "store_file_bytes",
]
