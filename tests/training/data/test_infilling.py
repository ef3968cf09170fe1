"""Middles are moved by position and seed, and what is moved can be put together again."""

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
from openwafer.training.data.infilling import FillInTheMiddle, Marks, move_middles
from openwafer.training.data.sample_order import keys_of
from tests.training.data.corpora import write_texts

END, PREFIX, SUFFIX, MIDDLE = 0, 1, 2, 3
MARKS = Marks(PREFIX, SUFFIX, MIDDLE, END)
NAMES = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


def moved(
    ids: NDArray[np.int64], asked: FillInTheMiddle, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    keys = keys_of(np.arange(len(ids)), seed)
    return move_middles(ids, ids % 2 == 0, keys, MARKS, asked)


def put_together(piece: list[int]) -> tuple[list[int], bool]:
    """What a piece was without its first three tokens, and whether its suffix came first."""
    middle = piece.index(MIDDLE)
    if piece[:2] == [PREFIX, SUFFIX]:
        return piece[middle + 1 :] + piece[2:middle], True
    suffix = piece.index(SUFFIX)
    return piece[1:suffix] + piece[middle + 1 :] + piece[suffix + 1 : middle], False


def pieces(ids: NDArray[np.int64]) -> list[list[int]]:
    """What a sample has of each document."""
    ends = np.flatnonzero(ids == END)
    return [piece[piece != END].tolist() for piece in np.split(ids, ends)]


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_a_piece_can_be_put_together_again(seed: int, length: int) -> None:
    ids = np.random.default_rng(seed).integers(4, 100, (6, length))
    ids[:, length // 2] = END
    shown, _ = moved(ids, FillInTheMiddle(share=1, suffix_first_share=0), seed)
    assert ((shown == END) == (ids == END)).all()
    for before, after in zip(ids, shown, strict=True):
        for text, piece in zip(pieces(before), pieces(after), strict=True):
            if len(text) <= 3:
                assert piece == text
            else:
                assert put_together(piece)[0] == text[3:]


def test_of_suffixes_first_the_middle_ends_the_piece_too() -> None:
    ids = np.arange(4, 44)[None]
    (shown,), _ = moved(ids, FillInTheMiddle(share=1, suffix_first_share=1))
    middle = shown.tolist().index(MIDDLE)
    # Prefix and middle follow each other, so that together they are the text up to the suffix.
    suffix, rest = shown[2:middle], shown[middle + 1 :]
    assert shown[:2].tolist() == [PREFIX, SUFFIX]
    assert [*rest, *suffix] == ids[0, 3:].tolist()


def test_shares_are_kept_and_cuts_are_spread_evenly() -> None:
    ids = np.arange(4, 104)[None].repeat(4000, axis=0)
    shown, _ = moved(ids, FillInTheMiddle(share=0.4, suffix_first_share=0.25))
    is_moved = shown[:, 0] == PREFIX
    is_first = shown[is_moved, 1] == SUFFIX
    assert abs(is_moved.mean() - 0.4) < 0.03
    # One of 98 prefixes is empty, of those with the prefix first.
    assert abs(is_first.mean() - 0.25 - 0.75 * 2 / 98) < 0.03
    places = np.nonzero(shown[is_moved] == MIDDLE)[1]
    assert 1 <= places.min() < 10
    assert 95 < places.max() <= 99


def test_targets_move_with_their_tokens_and_marks_are_targets() -> None:
    ids = np.random.default_rng(0).integers(4, 100, (8, 30))
    shown, are_targets = moved(ids, FillInTheMiddle(share=0.5))
    is_mark = shown < 4
    assert is_mark.sum() in range(3, 25, 3)
    assert (are_targets == (is_mark | (shown % 2 == 0))).all()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("infilling")
    training = TokenizerTraining(300, special_tokens=NAMES)
    sampling = Sampling(32, 8, fill_in_the_middle=FillInTheMiddle())
    config = DataConfig(write_texts(folder / "corpus"), training, sampling, validation_share=0.0)
    return prepare(config, folder / "tokens")


def test_the_position_alone_decides_whatever_the_ranks_and_pieces(dataset: TokenDataset) -> None:
    whole = dataset.batch(3)
    pieces_of = dataset.for_rank(1, 2).micro_batches(3, 2)
    assert torch.equal(whole.input_ids[4:], torch.cat([one.input_ids for one in pieces_of]))
    assert torch.equal(whole.input_ids, whole.labels)
    plain = replace(dataset, sampling=replace(dataset.sampling, fill_in_the_middle=None))
    assert not torch.equal(whole.input_ids, plain.batch(3).input_ids)
    assert plain.fingerprint != dataset.fingerprint


def test_a_tokenizer_without_the_marks_is_refused_before_a_batch(dataset: TokenDataset) -> None:
    asked = FillInTheMiddle(middle="<mid>")
    with pytest.raises(OpenwaferError, match=r"no token '<mid>' for fill_in_the_middle\.middle"):
        replace(dataset, sampling=replace(dataset.sampling, fill_in_the_middle=asked))


def test_shares_beyond_what_there_is_are_refused() -> None:
    with pytest.raises(InvalidFieldError, match="expected above 0 and up to 1, found 0"):
        FillInTheMiddle(share=0)
    with pytest.raises(InvalidFieldError, match="expected from 0 to 1, found 2"):
        FillInTheMiddle(suffix_first_share=2)
