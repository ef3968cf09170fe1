"""Hidden tokens are those of a sample's position, special tokens and padding stay in sight."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataConfig, Sampling, TokenDataset, TokenizerTraining, prepare
from openwafer.training.data.masking import Masking, Vocabulary, hide
from openwafer.training.data.sample_order import keys_of
from openwafer.training.labels import IGNORED_LABEL
from tests.training.data.corpora import write_texts

MASK = 3
VOCABULARY = Vocabulary(MASK, np.arange(100) < 4, np.arange(4, 100))


def hidden(
    ids: NDArray[np.int64], share: float, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    keys = keys_of(np.arange(len(ids)), seed)
    return hide(ids, np.ones(ids.shape, np.bool_), keys, VOCABULARY, share)


def test_shares_of_what_is_hidden_are_those_of_the_paper() -> None:
    ids = np.full((200, 500), 50)
    shown, are_hidden = hidden(ids, 0.15)
    found = shown[are_hidden]
    assert abs(are_hidden.mean() - 0.15) < 0.005
    assert abs((found == MASK).mean() - 0.8) < 0.01
    # Of those replaced at random, one in 96 is what it was.
    assert abs((found == 50).mean() - 0.1) < 0.01
    assert len(np.unique(found)) == 97
    assert (shown[~are_hidden] == 50).all()


@given(st.integers(0, 2**32), st.integers(2, 40), st.floats(0.01, 0.9))
def test_a_sample_has_a_target_and_its_first_and_special_tokens_stay(
    seed: int, length: int, share: float
) -> None:
    ids = np.random.default_rng(seed).integers(0, 100, (8, length))
    ids[:, 1] = 50
    _, are_hidden = hidden(ids, share, seed)
    assert are_hidden.any(axis=1).all()
    assert not are_hidden[:, 0].any()
    assert not (are_hidden & (ids < 4)).any()


def test_of_special_tokens_alone_one_is_hidden() -> None:
    _, are_hidden = hidden(np.ones((5, 6), np.int64), 0.5)
    assert are_hidden.sum(axis=1).tolist() == [1] * 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("masking")
    training = TokenizerTraining(300, special_tokens=("<|mask|>",))
    sampling = Sampling(32, 8, masking=Masking(0.3, "<|mask|>"))
    config = DataConfig(write_texts(folder / "corpus"), training, sampling, validation_share=0.0)
    return prepare(config, folder / "tokens")


def test_labels_are_the_hidden_tokens_and_no_others(dataset: TokenDataset) -> None:
    plain = replace(dataset, sampling=replace(dataset.sampling, masking=None)).batch(3)
    batch = dataset.batch(3)
    are_hidden = batch.labels != IGNORED_LABEL
    assert torch.equal(batch.labels[are_hidden], plain.input_ids[are_hidden])
    assert torch.equal(batch.input_ids[~are_hidden], plain.input_ids[~are_hidden])
    assert (batch.input_ids == dataset.tokenizer.mask_id("<|mask|>")).any()
    assert batch.num_targets == int(are_hidden.sum())


def test_the_same_sample_is_hidden_anew_when_it_comes_again(dataset: TokenDataset) -> None:
    epoch = replace(dataset, sampling=replace(dataset.sampling, global_batch=dataset.num_samples))
    first, second = (
        {tuple(ids): labels for ids, labels in zip(*pair, strict=True)}
        for pair in ((rows_of(epoch, step), epoch.batch(step).labels.tolist()) for step in range(2))
    )
    assert first.keys() == second.keys()
    assert all(first[ids] != second[ids] for ids in first)


def rows_of(dataset: TokenDataset, step: int) -> list[list[int]]:
    """What the samples of a step were before tokens were hidden."""
    plain = replace(dataset, sampling=replace(dataset.sampling, masking=None))
    rows: list[list[int]] = plain.batch(step).input_ids.tolist()
    return rows


def test_evaluations_hide_the_same_tokens_on_any_number_of_ranks(dataset: TokenDataset) -> None:
    whole = [row for batch in dataset.once() for row in batch.labels.tolist()]
    again = [row for batch in dataset.once() for row in batch.labels.tolist()]
    ranks = [dataset.for_rank(rank, 2).once() for rank in range(2)]
    shared = [row for pair in zip(*ranks, strict=True) for b in pair for row in b.labels.tolist()]
    assert whole == again == shared


def test_an_evaluation_hides_other_tokens_than_training_at_the_same_position(
    dataset: TokenDataset,
) -> None:
    epoch = replace(dataset.sampling, global_batch=dataset.num_samples, seed=0)
    batches, plain = (
        (next(one.once()), one.batch(0))
        for one in (
            replace(dataset, sampling=epoch),
            replace(dataset, sampling=replace(epoch, masking=None)),
        )
    )
    are_same = (plain[0].input_ids == plain[1].input_ids).all(1)
    are_other = (batches[0].labels != batches[1].labels).any(1)
    assert are_same.any()
    assert are_other[are_same].all()


def test_ranks_and_micro_batches_hide_what_one_batch_does(dataset: TokenDataset) -> None:
    whole = dataset.batch(5)
    ranks = torch.cat([dataset.for_rank(rank, 4).batch(5).labels for rank in range(4)])
    parts = torch.cat([part.input_ids for part in dataset.micro_batches(5, 2)])
    assert torch.equal(ranks, whole.labels)
    assert torch.equal(parts, whole.input_ids)


@pytest.mark.parametrize("token", [None, "<|hidden|>"])
def test_a_tokenizer_without_the_token_is_told(dataset: TokenDataset, token: str | None) -> None:
    with pytest.raises(OpenwaferError, match=r"name one in masking\.token"):
        TokenDataset.open(dataset.folder, Sampling(32, 8, masking=Masking(0.3, token)))


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_a_share_without_sense_is_refused(share: float) -> None:
    with pytest.raises(InvalidFieldError, match="expected above 0 and below 1"):
        Masking(share)
