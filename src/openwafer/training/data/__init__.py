"""Training data: sources of documents, tokenizers, token shards, and batches in a pure order."""

from openwafer.training.data.dataset import Batch, Sampling, SizeChange, TokenDataset
from openwafer.training.data.preparation import DataConfig, Preparation, prepare
from openwafer.training.data.shards import Split
from openwafer.training.data.sources import DataSource, SourceKind
from openwafer.training.data.tokenizer import SavedTokenizer, TokenizerTraining

__all__ = [
    "Batch",
    "DataConfig",
    "DataSource",
    "Preparation",
    "Sampling",
    "SavedTokenizer",
    "SizeChange",
    "SourceKind",
    "Split",
    "TokenDataset",
    "TokenizerTraining",
    "prepare",
]
