"""A source becomes shards once, is reused while nothing changed, and is rebuilt otherwise."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openwafer.config import parse
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Preparation,
    Sampling,
    SavedTokenizer,
    SourceKind,
    Split,
    TokenDataset,
    TokenizerTraining,
    prepare,
)
from openwafer.training.data.dataset import find_dataset
from openwafer.training.data.preparation import PIECE_CHARS, Stage
from openwafer.training.data.shards import read_index, write_index
from tests.training.data.corpora import (
    TEXTS,
    message,
    save_dataset,
    small_config,
    write_jsonl,
    write_parquet,
    write_texts,
)


def documents_of(dataset: TokenDataset) -> list[str]:
    """Texts of a split, decoded from its shards."""
    bounds = dataset.stream.document_bounds()
    separate = Sampling(int(max(bounds[1:] - bounds[:-1])), 1, cross_documents=False)
    batches = TokenDataset.open(dataset.folder, separate, split=dataset.split).once()
    return [dataset.tokenizer.decode(batch.input_ids[0].tolist()) for batch in batches]


def reports_of(config: DataConfig, folder: Path) -> list[Preparation]:
    """What is reported while preparing; nothing when all is reused."""
    reports: list[Preparation] = []
    prepare(config, folder, reports.append)
    return reports


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("corpus", write_texts),
        ("a.jsonl", write_jsonl),
        ("a.parquet", write_parquet),
        ("saved", save_dataset),
    ],
)
def test_the_documents_of_a_source_come_back_from_its_shards(
    tmp_path: Path, name: str, write: Callable[[Path], DataSource]
) -> None:
    dataset = prepare(small_config(write(tmp_path / name)), tmp_path / "tokens")
    assert documents_of(dataset) == list(TEXTS)


def test_a_slice_of_the_standard_library_can_be_trained_on(tmp_path: Path) -> None:
    source = DataSource(SourceKind.STANDARD_LIBRARY, ("json/*.py",))
    dataset = prepare(small_config(source), tmp_path / "tokens")
    assert any("class JSONDecoder" in text for text in documents_of(dataset))


def test_every_document_ends_with_the_end_of_text(dataset: TokenDataset) -> None:
    last = dataset.stream.document_bounds()[1:] - 1
    tokens = dataset.stream.gather((last, np.ones_like(last)), 1, padding=-1)
    assert set(tokens.flatten()) == {dataset.tokenizer.end_of_text_id}


def test_every_document_is_in_one_split(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), validation_share=0.5)
    train = prepare(config, tmp_path / "tokens")
    validation = documents_of(train.for_split(Split.VALIDATION))
    assert sorted(documents_of(train) + validation) == sorted(TEXTS)
    assert 3 <= len(validation) <= 17


def test_the_split_depends_on_its_seed(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), validation_share=0.5)
    zero = documents_of(prepare(config, tmp_path / "zero"))
    one = documents_of(prepare(replace(config, split_seed=1), tmp_path / "one"))
    assert zero != one


def test_the_shard_size_does_not_change_the_batches(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), shard_tokens=10**6)
    one_shard = prepare(config, tmp_path / "one")
    many_shards = prepare(replace(config, shard_tokens=1), tmp_path / "many")
    for step in range(10):
        assert one_shard.batch(step).input_ids.equal(many_shards.batch(step).input_ids)


def test_a_document_longer_than_a_piece_comes_back_whole(tmp_path: Path) -> None:
    line = "a line of text with an end\n"
    text = line * (2 * PIECE_CHARS // len(line)) + "x" * (PIECE_CHARS + 7)
    config = small_config(write_texts(tmp_path / "corpus", [text]))
    config = replace(config, tokenizer=TokenizerTraining(300, training_bytes=1))
    assert documents_of(prepare(config, tmp_path / "tokens")) == [text]


def test_nothing_is_done_when_nothing_changed(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    prepare(config, tmp_path / "tokens")
    assert reports_of(config, tmp_path / "tokens") == []


def test_another_sampling_reuses_the_shards(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    prepare(config, tmp_path / "tokens")
    assert reports_of(replace(config, sampling=Sampling(8, 2)), tmp_path / "tokens") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer": TokenizerTraining(310)},
        {"validation_share": 0.4},
        {"split_seed": 5},
        {"shard_tokens": 2001},
    ],
)
def test_a_changed_setting_rebuilds(tmp_path: Path, changes: dict[str, object]) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    prepare(config, tmp_path / "tokens")
    assert reports_of(replace(config, **changes), tmp_path / "tokens")  # type: ignore[arg-type]


def test_a_changed_source_is_prepared_beside_what_was_there(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), shard_tokens=10**6)
    before = prepare(config, tmp_path / "tokens")
    (tmp_path / "corpus/new.txt").write_text("One more document.")
    dataset = prepare(config, tmp_path / "tokens")
    assert documents_of(dataset) == [*TEXTS, "One more document."]
    assert documents_of(before) == list(TEXTS)


def test_runs_with_other_tokenizers_share_a_folder(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    other = replace(config, tokenizer=TokenizerTraining(290))
    first, second = (prepare(c, tmp_path / "tokens") for c in (config, other))
    for dataset in (first, second):
        found = find_dataset(tmp_path / "tokens", dataset.sampling, dataset.fingerprint)
        assert found is not None
        assert found.tokenizer.fingerprint == dataset.tokenizer.fingerprint
    assert reports_of(config, tmp_path / "tokens") == []


def test_a_dataset_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    prepare(small_config(write_texts(tmp_path / "corpus")), tmp_path / "tokens")
    assert find_dataset(tmp_path / "tokens", Sampling(), "no such fingerprint") is None


def test_the_damaged_index_of_other_tokens_does_not_hide_ours(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    ours = prepare(config, tmp_path / "tokens")
    (tmp_path / "tokens/0").mkdir()
    (tmp_path / "tokens/0/dataset.json").touch()
    assert find_dataset(tmp_path / "tokens", ours.sampling, ours.fingerprint) is not None
    with pytest.raises(OpenwaferError, match=r"tokens/0/dataset\.json is damaged: not JSON"):
        find_dataset(tmp_path / "tokens", ours.sampling, "another")


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), shard_tokens=10**6)
    folder = prepare(config, tmp_path / "tokens").folder
    (folder / "dataset.json").unlink()
    (folder / "train-00001.tokens").touch()
    prepare(config, tmp_path / "tokens")
    assert [path.name for path in folder.glob("*.tokens")] == ["train-00000.tokens"]


def test_a_saved_tokenizer_is_used(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    trained = prepare(config, tmp_path / "tokens")
    config = replace(config, tokenizer=SavedTokenizer(trained.folder))
    loaded = prepare(config, tmp_path / "again")
    assert loaded.tokenizer.fingerprint == trained.tokenizer.fingerprint
    assert loaded.batch(3).input_ids.equal(trained.batch(3).input_ids)


def test_each_stage_reports_up_to_its_end(tmp_path: Path) -> None:
    reports = reports_of(small_config(write_texts(tmp_path / "corpus")), tmp_path / "tokens")
    total = sum(len(text) for text in TEXTS)
    assert [(r.stage, r.done_bytes, r.total_bytes, r.num_documents) for r in reports] == [
        (Stage.TRAIN_TOKENIZER, total, total, 20),
        (Stage.TOKENISE, total, total, 20),
    ]


def test_a_tokenizer_is_trained_on_no_more_than_its_share(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    config = replace(config, tokenizer=TokenizerTraining(300, training_bytes=len(TEXTS[0]) + 1))
    assert reports_of(config, tmp_path / "tokens")[0].num_documents == 2


def test_a_failed_build_leaves_the_old_data(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    before = prepare(config, tmp_path / "tokens")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    broken = replace(config, source=DataSource(SourceKind.TEXT, (f"{tmp_path}/bad.txt",)))
    with pytest.raises(OpenwaferError, match="byte 0xff at offset 0 is no UTF-8"):
        prepare(broken, tmp_path / "tokens")
    after = TokenDataset.open(before.folder, config.sampling)
    assert after.fingerprint == before.fingerprint


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(OpenwaferError) as caught:
        prepare(config, tmp_path / "taken/tokens")
    assert message(caught.value).startswith(
        f"data cannot be prepared in {tmp_path}/taken/tokens: "
        f"[Errno 20] Not a directory: '{tmp_path}/taken/tokens/"
    )


def test_damage_since_the_last_run_is_noticed(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"), shard_tokens=10**6)
    [shard] = prepare(config, tmp_path / "tokens").folder.glob("*.tokens")
    os.truncate(shard, shard.stat().st_size - 8)
    with pytest.raises(OpenwaferError, match=f"token shard {shard} is damaged: size: expected "):
        prepare(config, tmp_path / "tokens")


def test_callers_at_the_same_time_build_once(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    reports: list[Preparation] = []
    arguments = (config, tmp_path / "tokens", reports.append)
    threads = [threading.Thread(target=prepare, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.stage for report in reports] == [Stage.TRAIN_TOKENIZER, Stage.TOKENISE]


def test_an_exchanged_shard_is_noticed(tmp_path: Path, dataset: TokenDataset) -> None:
    folder = shutil.copytree(dataset.folder, tmp_path / "tokens")
    [train], [validation] = folder.glob("train-*.tokens"), folder.glob("validation-*.tokens")
    shutil.copy(validation, train)
    with pytest.raises(OpenwaferError, match=f"{train.name} is another shard than dataset.json"):
        TokenDataset.open(folder, dataset.sampling)


def test_a_foreign_tokenizer_beside_the_shards_is_noticed(tmp_path: Path) -> None:
    config = small_config(write_texts(tmp_path / "corpus"))
    ours = prepare(config, tmp_path / "tokens")
    theirs = prepare(replace(config, tokenizer=TokenizerTraining(290)), tmp_path / "theirs")
    shutil.copy(theirs.folder / "tokenizer.json", ours.folder)
    with pytest.raises(OpenwaferError) as caught:
        TokenDataset.open(ours.folder, config.sampling)
    assert message(caught.value) == (
        f"{ours.folder}/tokenizer.json is not the tokenizer of the shards beside it: expected "
        f"{ours.tokenizer.fingerprint}, found {theirs.tokenizer.fingerprint}"
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"version":2', '"version":1', "is .* version 1; this program reads .* version 2"),
        ('"u16"', '"u32"', "is damaged: its content has the checksum"),
    ],
)
def test_an_index_of_another_kind_is_refused(
    tmp_path: Path, dataset: TokenDataset, old: str, new: str, told: str
) -> None:
    text = (dataset.folder / "dataset.json").read_text()
    (tmp_path / "dataset.json").write_text(text.replace(old, new))
    with pytest.raises(OpenwaferError, match=rf"wrong-index.*dataset\.json {told}"):
        TokenDataset.open(tmp_path, dataset.sampling)


def test_a_shard_outside_of_the_folder_is_refused(tmp_path: Path, dataset: TokenDataset) -> None:
    index = read_index(dataset.folder)
    headers = index.of_split(Split.TRAIN).values()
    moved = {f"../{number}.tokens": header for number, header in enumerate(headers)}
    write_index(tmp_path, replace(index, shards={Split.TRAIN: moved}))
    with pytest.raises(OpenwaferError, match=r"dataset\.json names the file '\.\./0\.tokens'"):
        TokenDataset.open(tmp_path, dataset.sampling)


def test_a_split_without_documents_is_refused(tmp_path: Path) -> None:
    dataset = prepare(small_config(write_texts(tmp_path / "corpus")), tmp_path / "tokens")
    with pytest.raises(OpenwaferError) as caught:
        dataset.for_split(Split.VALIDATION)
    assert str(caught.value) == (
        f"error[no-such-split]: {dataset.folder} holds no validation documents\n"
        "  = help: raise validation_share, or give a source of more documents"
    )


def test_a_config_file_describes_the_data() -> None:
    text = "source: {kind: jsonl, paths: [a.jsonl], column: body}\ntokenizer: {vocab_size: 500}"
    config = parse(SourceText("run.yaml", text), DataConfig)
    source = DataSource(SourceKind.JSONL, ("a.jsonl",), column="body")
    assert config == DataConfig(source, TokenizerTraining(500))
