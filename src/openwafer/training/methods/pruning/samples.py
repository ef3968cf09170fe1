"""The tokens on which a model is looked at while it is pruned."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

import torch
import transformers
from torch import Tensor

from openwafer.diagnostics import counted, error
from openwafer.training.data import DataSource, SourceKind, TokenDataset
from openwafer.training.data.documents import read_documents
from openwafer.training.data.tokenizer import Tokenizer
from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.methods.pruning.options import Calibration

# As Wanda and SparseGPT are published.
MOST_TOKENS: Final = 2048
TABLES: Final = {".jsonl": SourceKind.JSONL, ".parquet": SourceKind.PARQUET}


def samples_of_texts(calibration: Calibration, tokenizer: Tokenizer, length: int) -> list[Tensor]:
    """Samples of ``length`` tokens each, from the first documents of the texts on.

    Raises:
        OpenwaferError: ``calibration-short``, and what reading the texts raises.
    """
    tokens: list[int] = []
    wanted = calibration.num_samples * length
    for path in calibration.texts:
        kind = TABLES.get(Path(path).suffix, SourceKind.TEXT)
        for document in read_documents(DataSource(kind, (path,))):
            tokens += [*tokenizer.encode(document.text), tokenizer.end_of_text_id]
            if len(tokens) >= wanted:
                break
    num_samples = min(len(tokens), wanted) // length
    if not num_samples:
        raise error(
            "calibration-short",
            f"the texts have {counted(len(tokens), 'token')}, and a sample takes {length}",
            help="give longer texts",
        )
    return list(torch.tensor(tokens[: num_samples * length]).reshape(num_samples, length))


def samples_of_run(calibration: Calibration, dataset: TokenDataset) -> list[Tensor]:
    """The first samples that a run was trained on, without padding."""
    samples: list[Tensor] = []
    wanted = min(calibration.num_samples, dataset.num_samples)
    for step in count():
        batch = dataset.batch(step)
        rows = zip(batch.input_ids, batch.labels, strict=True)
        samples += [ids[labels != IGNORED_LABEL] for ids, labels in rows]
        if len(samples) >= wanted:
            return samples[:wanted]
    raise AssertionError


def sample_length(model: transformers.PreTrainedModel) -> int:
    """Tokens of a sample: as many as the model has positions for, and 2048 at most."""
    # Not every architecture has a table or a limit of positions.
    positions = getattr(model.config, "max_position_embeddings", None)
    return min(positions, MOST_TOKENS) if isinstance(positions, int) else MOST_TOKENS


def describe_samples(samples: Sequence[Tensor]) -> str:
    """How much is looked at."""
    num_tokens = sum(sample.numel() for sample in samples)
    return f"{counted(num_tokens, 'token')} in {counted(len(samples), 'sample')}"
