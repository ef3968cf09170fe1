"""Which samples a step has where the batch size changes on the way."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    SizeChange,
    SourceKind,
    TokenDataset,
    TokenizerTraining,
    prepare,
)
from openwafer.training.data.dataset import BatchSizes

SIZES = BatchSizes(2, (SizeChange(3, 6), SizeChange(4, 4)))
SAMPLING = Sampling(sequence_length=8, global_batch=2, seed=5, schedule=SIZES.changes)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "a.txt").write_text("one and two and three and four; " * 40)
    source = DataSource(SourceKind.TEXT, (str(folder / "a.txt"),))
    config = DataConfig(source, TokenizerTraining(270), SAMPLING, validation_share=0.0)
    return prepare(config, folder / "tokens")


def test_each_step_has_the_size_that_holds_there() -> None:
    assert [SIZES.at(step) for step in range(6)] == [2, 2, 2, 6, 4, 4]


def test_the_position_of_a_step_is_the_sum_of_the_sizes_before() -> None:
    expected = [sum(SIZES.at(step) for step in range(end)) for end in range(8)]
    assert [SIZES.before(step) for step in range(8)] == expected == [0, 2, 4, 6, 12, 16, 20, 24]


def test_spans_have_the_steps_of_each_size() -> None:
    assert [*SIZES.spans(6)] == [(2, 3), (6, 1), (4, 2)]
    assert [*SIZES.spans(3)] == [(2, 3)]


def test_every_step_goes_on_in_the_one_stream_of_samples(dataset: TokenDataset) -> None:
    single = replace(dataset, sampling=Sampling(8, 1, 5))
    stream = torch.cat([single.batch(position).input_ids for position in range(24)])
    steps = torch.cat([dataset.batch(step).input_ids for step in range(7)])
    assert torch.equal(steps, stream)


def test_ranks_share_each_step_of_any_size(dataset: TokenDataset) -> None:
    for step in range(5):
        parts = [dataset.for_rank(rank, 2).batch(step).input_ids for rank in range(2)]
        assert torch.equal(torch.cat(parts), dataset.batch(step).input_ids)


def test_ranks_that_do_not_divide_every_size_are_refused(dataset: TokenDataset) -> None:
    sampling = replace(SAMPLING, schedule=(SizeChange(3, 5),))
    with pytest.raises(OpenwaferError, match="batch of 5 samples does not divide among 2 ranks"):
        replace(dataset, sampling=sampling).for_rank(0, 2)


def test_what_is_still_to_come_is_not_in_the_fingerprint(dataset: TokenDataset) -> None:
    other = replace(dataset, sampling=replace(SAMPLING, schedule=SIZES.changes[:1]))
    assert dataset.fingerprint_until(4) == other.fingerprint_until(4)
    assert dataset.fingerprint_until(5) != other.fingerprint_until(5)
    assert dataset.fingerprint_until(3) == replace(dataset, sampling=Sampling(8, 2, 5)).fingerprint


def test_without_a_schedule_the_fingerprint_is_that_of_earlier_releases() -> None:
    text = "Sampling(sequence_length=512, global_batch=8, seed=0, cross_documents=True)"
    assert repr(Sampling()) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: 4}, "expected a from_step behind step 0, found 0"),
        ({5: 4, 3: 8}, "expected a from_step behind step 5, found 3"),
        ({5: 0}, "expected a size of at least 1 from step 5 on, found 0"),
        ({5: 4, 7: 4}, "the size from step 7 on is 4, as before"),
    ],
)
def test_sizes_without_an_order_are_refused(changes: Mapping[int, int], message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message):
        BatchSizes(2, tuple(SizeChange(*change) for change in changes.items()))


def test_a_sampling_checks_its_schedule() -> None:
    with pytest.raises(InvalidFieldError, match=r"schedule: .* found 0"):
        Sampling(schedule=(SizeChange(0, 4),))
