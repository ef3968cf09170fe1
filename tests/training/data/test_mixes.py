"""Sources are mixed in their shares, by the position of a sample alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.config import InvalidFieldError, parse
from openwafer.diagnostics import OpenwaferError
from openwafer.source import SourceText
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    Split,
    TokenDataset,
    TokenizerTraining,
    prepare,
)
from openwafer.training.data.mix import PERIOD, Mix, MixedSource, check_shares, parts_of
from tests.training.data.corpora import write_texts

SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6).map(tuple)
SAMPLING = Sampling(sequence_length=8, global_batch=10, seed=3)
LETTERS = "abc"


def corpora(folder: Path) -> list[DataSource]:
    """Three sources of one letter each; the first has few documents."""
    counts = (3, 30, 60)
    texts = [[letter * 40] * count for letter, count in zip(LETTERS, counts, strict=True)]
    return [write_texts(folder / letter, one) for letter, one in zip(LETTERS, texts, strict=True)]


def mixed(folder: Path, *shares: float, validation_share: float = 0.0) -> DataConfig:
    mix = tuple(map(MixedSource, shares, corpora(folder)))
    training = TokenizerTraining(vocab_size=257)
    return DataConfig(mix, training, SAMPLING, validation_share, shard_tokens=500)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("mix")
    return prepare(mixed(folder, 5, 3, 2, validation_share=0.3), folder / "tokens")


def letters(dataset: TokenDataset, step: int) -> str:
    """The letter that each sample of a step has most of."""
    rows = [dataset.tokenizer.decode(row.tolist()) for row in dataset.batch(step).input_ids]
    return "".join(max(LETTERS, key=row.count) for row in rows)


@given(SHARES, st.integers(0, 10**6), st.integers(1, 3000))
def test_every_stretch_has_each_source_in_its_share(
    shares: tuple[float, ...], start: int, size: int
) -> None:
    mix = Mix(shares)
    sources, _ = mix.draw(np.arange(start, start + size))
    found = np.bincount(sources, minlength=len(shares))
    assert (abs(found - mix.counts * size / PERIOD) <= len(shares)).all()
    assert (abs(mix.counts / PERIOD - np.array(shares) / sum(shares)) <= 1 / PERIOD).all()


@given(SHARES)
def test_each_source_is_read_in_its_own_order_without_a_gap(shares: tuple[float, ...]) -> None:
    sources, places = Mix(shares).draw(np.arange(2 * PERIOD))
    for source in range(len(shares)):
        drawn = places[sources == source]
        assert drawn.tolist() == list(range(drawn.size))


def test_a_source_may_have_one_sample_in_a_thousand() -> None:
    shares = (1.0, 999.0)
    check_shares(shares)
    sources, _ = Mix(shares).draw(np.arange(3000))
    assert [int((part == 0).sum()) for part in np.split(sources, 3)] == [1, 1, 1]


def test_batches_have_samples_of_all_sources(dataset: TokenDataset) -> None:
    for step in (0, 1, 40):
        found = letters(dataset, step)
        assert [found.count(letter) for letter in LETTERS] == [5, 3, 2]


def test_ranks_see_what_one_does(dataset: TokenDataset) -> None:
    halves = [letters(dataset.for_rank(rank, 2), 7) for rank in range(2)]
    assert "".join(halves) == letters(dataset, 7)


def test_other_shares_tokenise_nothing_again(tmp_path: Path) -> None:
    config = mixed(tmp_path, 1, 1, 1)
    first = prepare(config, tmp_path / "tokens")
    told: list[object] = []
    mix = tuple(map(MixedSource, (8, 1, 1), parts_of(config.source)))
    second = prepare(replace(config, source=mix), tmp_path / "tokens", told.append)
    assert told == []
    assert letters(second, 0).count("a") == 8
    assert first.fingerprint != second.fingerprint


def test_held_out_samples_come_of_all_sources_from_the_first_batch_on(
    dataset: TokenDataset,
) -> None:
    held_out = dataset.for_split(Split.VALIDATION)
    batches = list(held_out.once())
    assert sum(len(batch.input_ids) for batch in batches) == held_out.num_samples
    texts = dataset.tokenizer.decode(batches[0].input_ids.flatten().tolist())
    assert "b" in texts
    assert "c" in texts


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ((1.0, 0.0, 1.0), "expected shares above zero, found 0 of source 2"),
        ((1.0, 1.0, float("nan")), "expected shares above zero, found nan of source 3"),
        ((1e-4, 1.0, 1.0), "source 1 has 5e-05 of the samples, expected at least 0.001"),
    ],
)
def test_a_share_that_cannot_be_kept_is_refused(
    shares: tuple[float, ...], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidFieldError, match=told):
        mixed(tmp_path, *shares)


def test_an_empty_mix_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="found an empty list"):
        DataConfig(())


def test_a_mix_is_read_where_a_source_is() -> None:
    text = SourceText(
        "a.yaml",
        """\
source:
  - {share: 3, source: {kind: text, paths: [a.txt]}}
  - {share: 1, source: {kind: standard-library}}
""",
    )
    config = parse(text, DataConfig)
    assert list(config.sampling.shares) == [3, 1]
    assert [source.paths for source in parts_of(config.source)] == [("a.txt",), ()]


def test_a_source_without_a_sample_is_named(tmp_path: Path) -> None:
    sources = [write_texts(tmp_path / "a", ["a" * 90]), write_texts(tmp_path / "b", ["b"])]
    mix = tuple(MixedSource(1.0, source) for source in sources)
    with pytest.raises(
        OpenwaferError,
        match=r"source 2 of the mix in the train split of .* has 2 tokens, fewer than",
    ):
        prepare(DataConfig(mix, TokenizerTraining(257), SAMPLING, 0.0), tmp_path / "t")
