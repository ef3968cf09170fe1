"""Small corpora of every kind, written to disk."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataConfig, DataSource, Sampling, SourceKind, TokenizerTraining

TEXTS = tuple(f"Document {n}: " + " ".join(f"word{n * k}" for k in range(n)) for n in range(1, 21))


def message(problem: OpenwaferError) -> str:
    """The first diagnostic's message."""
    return problem.diagnostics[0].message


def write_texts(folder: Path, texts: Sequence[str] = TEXTS) -> DataSource:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:03}.txt").write_text(text)
    return DataSource(SourceKind.TEXT, (str(folder),))


def write_jsonl(file: Path, texts: Sequence[str] = TEXTS, column: str = "text") -> DataSource:
    file.write_text("".join(json.dumps({"id": 1, column: text}) + "\n" for text in texts))
    return DataSource(SourceKind.JSONL, (str(file),), column=column)


def write_parquet(file: Path, texts: Sequence[str] = TEXTS, column: str = "text") -> DataSource:
    table = pa.table({"id": range(len(texts)), column: texts})
    pq.write_table(table, file, row_group_size=3)
    return DataSource(SourceKind.PARQUET, (str(file),), column=column)


def save_dataset(folder: Path, texts: Sequence[str] = TEXTS, num_files: int = 2) -> DataSource:
    """Lay out ``texts`` as ``datasets.Dataset.save_to_disk`` does."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05}-of-{num_files:05}.arrow" for n in range(num_files)]
    size = -(-len(texts) // num_files)
    for number, name in enumerate(names):
        table = pa.table({"text": texts[number * size : (number + 1) * size]})
        with pa.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return DataSource(SourceKind.HUGGING_FACE, (str(folder),))


def small_config(
    source: DataSource,
    *,
    sampling: Sampling | None = None,
    validation_share: float = 0.0,
    shard_tokens: int = 2000,
) -> DataConfig:
    """A vocabulary of 300, and shards so small that there are a few."""
    return DataConfig(
        source,
        TokenizerTraining(vocab_size=300),
        sampling or Sampling(sequence_length=16, global_batch=4),
        validation_share=validation_share,
        shard_tokens=shard_tokens,
    )
