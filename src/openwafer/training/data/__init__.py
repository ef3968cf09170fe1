"""Training data: sources of documents, tokenizers, token shards, and batches in a pure order."""

from openwafer.training.data.batch_sizes import BatchSizes, SizeChange
from openwafer.training.data.dataset import Batch, Sampling, TokenDataset, find_dataset
from openwafer.training.data.documents import Document, read_documents
from openwafer.training.data.index import Split
from openwafer.training.data.preparation import DataConfig, Preparation, Stage, prepare
from openwafer.training.data.sources import DataSource, SourceKind
from openwafer.training.data.tokenizer import (
    SavedTokenizer,
    Tokenizer,
    TokenizerTraining,
    load_tokenizer,
    train_tokenizer,
)

__all__ = [
    "Batch",
    "BatchSizes",
    "DataConfig",
    "DataSource",
    "Document",
    "Preparation",
    "Sampling",
    "SavedTokenizer",
    "SizeChange",
    "SourceKind",
    "Split",
    "Stage",
    "TokenDataset",
    "Tokenizer",
    "TokenizerTraining",
    "find_dataset",
    "load_tokenizer",
    "prepare",
    "read_documents",
    "train_tokenizer",
]
