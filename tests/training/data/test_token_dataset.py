"""Batches depend on seed and step alone; ranks and micro-batches only share them out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import Batch, Sampling, Split, TokenDataset
from tests.training.data.corpora import message


def reopened(dataset: TokenDataset, **changes: object) -> TokenDataset:
    sampling = replace(dataset.sampling, **changes)  # type: ignore[arg-type]
    return TokenDataset.open(dataset.folder, sampling)


def rows_of(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(row) for row in batch.input_ids.tolist()]


def joined(batches: list[Batch]) -> torch.Tensor:
    return torch.cat([batch.input_ids for batch in batches])


def test_a_batch_is_int64_of_samples_by_sequence(dataset: TokenDataset) -> None:
    batch = dataset.batch(0)
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    assert batch.input_ids.shape == batch.labels.shape == (4, 16)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_slices_of_the_ranks_make_up_the_global_batch(
    dataset: TokenDataset, step: int, world_size: int
) -> None:
    whole = reopened(dataset, global_batch=12)
    slices = [whole.for_rank(rank, world_size).batch(step) for rank in range(world_size)]
    assert torch.equal(joined(slices), whole.batch(step).input_ids)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_micro_batches_make_up_the_batch(dataset: TokenDataset, step: int, num: int) -> None:
    whole = reopened(dataset, global_batch=12, cross_documents=False)
    parts = whole.micro_batches(step, num)
    assert len(parts) == num
    assert torch.equal(joined(list(parts)), whole.batch(step).input_ids)
    later = whole.micro_batches(step, num, range(num // 2, num))
    assert torch.equal(joined(list(later)), joined(list(parts[num // 2 :])))


@pytest.mark.parametrize("cross_documents", [True, False])
def test_an_epoch_of_steps_holds_every_sample_once(
    dataset: TokenDataset, cross_documents: bool
) -> None:
    single = reopened(dataset, global_batch=1, cross_documents=cross_documents)
    seen = [rows_of(single.batch(step))[0] for step in range(single.num_samples)]
    stored = [row for batch in single.once() for row in rows_of(batch)]
    assert Counter(seen) == Counter(stored)


def test_samples_say_where_their_documents_begin_and_end(dataset: TokenDataset) -> None:
    separate = reopened(dataset, global_batch=10**6, cross_documents=False)
    (batch,) = separate.once()
    assert batch.row_ends is not None
    begins, ends = batch.row_ends.T.tolist()
    # Every document ends with this token, and has it nowhere else.
    end = dataset.tokenizer.end_of_text_id
    assert ends == [int(row[-1]) == end for row in batch.without_padding]
    assert sum(begins) == len(separate.stream.document_bounds()) - 1 < len(begins)
    assert torch.equal(batch.rows(1, 3).row_ends, batch.row_ends[1:3])  # type: ignore[arg-type]


def test_samples_that_go_across_documents_say_nothing_of_them(dataset: TokenDataset) -> None:
    assert dataset.batch(0).row_ends is None


def test_the_global_batch_size_does_not_change_the_order(dataset: TokenDataset) -> None:
    ones = reopened(dataset, global_batch=1)
    one_by_one = joined([ones.batch(step) for step in range(60)])
    by_twelve = joined([reopened(dataset, global_batch=12).batch(step) for step in range(5)])
    assert torch.equal(one_by_one, by_twelve)


def test_another_seed_gives_another_order(dataset: TokenDataset) -> None:
    assert rows_of(dataset.batch(0)) != rows_of(reopened(dataset, seed=1).batch(0))


def test_any_step_can_be_had_first(dataset: TokenDataset) -> None:
    for step in range(7):
        dataset.batch(step)
    fresh = TokenDataset.open(dataset.folder, dataset.sampling)
    assert torch.equal(fresh.batch(7).input_ids, dataset.batch(7).input_ids)


def test_labels_equal_the_ids_where_documents_are_joined(dataset: TokenDataset) -> None:
    batch = dataset.batch(0)
    assert torch.equal(batch.labels, batch.input_ids)
    assert batch.attention_mask is None


def test_changing_labels_leaves_the_ids_alone(dataset: TokenDataset) -> None:
    batch = dataset.batch(0)
    batch.labels.fill_(-100)
    assert torch.equal(batch.input_ids, dataset.batch(0).input_ids)


def test_padding_has_no_label_and_no_attention(dataset: TokenDataset) -> None:
    batch = reopened(dataset, cross_documents=False, sequence_length=64, global_batch=50).batch(0)
    assert batch.attention_mask is not None
    padded = batch.attention_mask == 0
    assert padded.any()
    assert (batch.labels[padded] == -100).all()
    assert torch.equal(batch.labels[~padded], batch.input_ids[~padded])


def test_padding_is_behind_the_tokens(dataset: TokenDataset) -> None:
    batch = reopened(dataset, cross_documents=False, sequence_length=64, global_batch=50).batch(0)
    assert batch.attention_mask is not None
    assert (batch.attention_mask.diff(dim=1) <= 0).all()


def test_samples_of_separate_documents_end_no_text_but_at_their_end(dataset: TokenDataset) -> None:
    separate = reopened(dataset, cross_documents=False, sequence_length=64)
    end = dataset.tokenizer.end_of_text_id
    for batch in separate.once():
        assert not (batch.labels[:, :-1] == end).logical_and(batch.labels[:, 1:] != -100).any()


def test_tokens_and_targets_are_counted_without_padding() -> None:
    labels = torch.tensor([[1, 2, 3, -100], [1, 2, -100, -100]])
    batch = Batch(labels.clamp(min=0), labels, (labels != -100).long())
    assert (batch.num_tokens, batch.num_targets) == (5, 3)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_evaluation_sees_every_sample_once_on_some_rank(
    dataset: TokenDataset, world_size: int
) -> None:
    views = [dataset.for_rank(rank, world_size) for rank in range(world_size)]
    seen = [row for view in views for batch in view.once() for row in rows_of(batch)]
    assert len(seen) == dataset.num_samples
    assert Counter(seen) == Counter(rows_of(Batch(joined(list(dataset.once())), torch.empty(0))))


def test_validation_documents_are_read_from_the_same_folder(dataset: TokenDataset) -> None:
    validation = dataset.for_split(Split.VALIDATION)
    text = dataset.tokenizer.decode(joined(list(validation.once())).flatten().tolist())
    assert text.startswith("Document ")
    assert validation.num_tokens < dataset.num_tokens


def test_the_fingerprint_tells_samplings_apart(dataset: TokenDataset) -> None:
    assert dataset.fingerprint != reopened(dataset, seed=1).fingerprint


def test_the_fingerprint_does_not_depend_on_the_ranks(dataset: TokenDataset) -> None:
    assert dataset.fingerprint == dataset.for_rank(1, 2).fingerprint


def test_ranks_must_divide_the_global_batch(dataset: TokenDataset) -> None:
    with pytest.raises(OpenwaferError) as caught:
        dataset.for_rank(0, 3)
    assert str(caught.value) == (
        "error[uneven-ranks]: a global batch of 4 samples does not divide among 3 ranks\n"
        "  = help: choose a global_batch that is a multiple of 3"
    )


def test_a_rank_outside_the_world_is_refused(dataset: TokenDataset) -> None:
    with pytest.raises(OpenwaferError, match="rank 2 is not among 2 ranks"):
        dataset.for_rank(2, 2)


def test_micro_batches_must_divide_the_batch(dataset: TokenDataset) -> None:
    with pytest.raises(OpenwaferError, match="4 samples of a rank do not divide into 3 micro-bat"):
        dataset.micro_batches(0, 3)


def test_a_sequence_longer_than_the_data_is_refused(dataset: TokenDataset) -> None:
    with pytest.raises(OpenwaferError) as caught:
        reopened(dataset, sequence_length=10**6)
    assert message(caught.value) == (
        f"the train split of {dataset.folder} has {dataset.num_tokens} tokens, fewer than "
        "one sample of 1000000"
    )


def test_a_folder_that_was_never_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match="holds no token dataset: it has no "):
        TokenDataset.open(tmp_path, Sampling())
