"""Training data: sources of documents, tokenizers, token shards, and batches in a pure order."""

from openwafer.training.data.dataset import Batch, Sampling, TokenDataset
from openwafer.training.data.documents import Document, read_documents
from openwafer.training.data.index import Split
from openwafer.training.data.preparation import DataConfig, Progress, Stage, prepare
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
    "DataConfig",
    "DataSource",
    "Document",
    "Progress",
    "Sampling",
    "SavedTokenizer",
    "SourceKind",
    "Split",
    "Stage",
    "TokenDataset",
    "Tokenizer",
    "TokenizerTraining",
    "load_tokenizer",
    "prepare",
    "read_documents",
    "train_tokenizer",
]
