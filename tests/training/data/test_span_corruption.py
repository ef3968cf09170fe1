"""What is left out and what is written make the text again; position and seed decide."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataConfig, Sampling, TokenDataset, TokenizerTraining, prepare
from openwafer.training.data.masking import Masking
from openwafer.training.data.sample_order import keys_of
from openwafer.training.data.span_corruption import SpanCorruption, corrupt
from openwafer.training.labels import IGNORED_LABEL
from tests.training.data.corpora import write_texts

END = 0
TOKENS = np.arange(1000, 1100)
NAMES = tuple(f"<extra_id_{number}>" for number in range(4))


def put_together(read: list[int], written: list[int]) -> list[int]:
    """The text: what the encoder reads, with each token of a span replaced by what is written."""
    spans: dict[int, list[int]] = {}
    for token in written:
        if token >= TOKENS[0]:
            spans[token] = last = []
        else:
            last.append(token)
    assert [token for token in read if token in spans] == sorted(spans)
    return [one for token in read for one in spans.get(token, [token])]


@given(
    st.integers(0, 2**32), st.integers(2, 60), st.floats(0.01, 0.99), st.floats(1, 20), st.data()
)
def test_what_is_read_and_written_makes_the_text(
    seed: int, length: int, share: float, mean_length: float, data: st.DataObject
) -> None:
    asked = SpanCorruption(share, mean_length)
    ids = np.random.default_rng(seed).integers(1, 100, (4, length))
    lengths = np.array(data.draw(st.lists(st.integers(2, length), min_size=4, max_size=4)))
    keys = keys_of(np.arange(4), seed)
    read, written, is_token = corrupt(ids, lengths, keys, TOKENS, END, asked)
    for row, size in enumerate(lengths):
        inputs, outputs = read[row][is_token[row]], written[row][written[row] != IGNORED_LABEL]
        assert (inputs[-1], outputs[-1]) == (END, END)
        assert put_together([*inputs[:-1]], [*outputs[:-1]]) == ids[row, :size].tolist()
        assert (inputs.size, outputs.size) == asked.sizes(int(size))
        assert (read[row][~is_token[row]] == END).all()


def test_shares_and_spans_are_those_of_the_paper() -> None:
    assert SpanCorruption().counts(512) == (77, 26)
    # The paper's own sizes: 568 tokens of text are 512 for the encoder, 114 for the decoder.
    assert SpanCorruption().sizes(568) == (512, 114)


def test_every_token_is_left_out_as_often_but_at_the_ends() -> None:
    ids = np.arange(1, 101)[None].repeat(3000, axis=0)
    keys, lengths = keys_of(np.arange(3000), 7), np.full(3000, 100)
    _, written, _ = corrupt(ids, lengths, keys, TOKENS, END, SpanCorruption())
    times = np.bincount(written[(written > 0) & (written < 1000)], minlength=101)[1:] / 3000
    assert abs(times.mean() - 0.15) < 1e-9
    assert (abs(times[20:80] - 0.15) < 0.04).all()
    assert times[0] == 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("spans")
    training = TokenizerTraining(300, special_tokens=NAMES)
    sampling = Sampling(32, 8, span_corruption=SpanCorruption())
    config = DataConfig(write_texts(folder / "corpus"), training, sampling, validation_share=0.0)
    return prepare(config, folder / "tokens")


def test_the_position_alone_decides_whatever_the_ranks_and_pieces(dataset: TokenDataset) -> None:
    whole = dataset.batch(3)
    parts = dataset.for_rank(1, 2).micro_batches(3, 2)
    assert torch.equal(whole.input_ids[4:], torch.cat([part.input_ids for part in parts]))
    assert torch.equal(whole.labels[4:], torch.cat([part.labels for part in parts]))
    assert (whole.input_ids.shape, whole.labels.shape) == ((8, 30), (8, 8))
    assert whole.num_targets == sum(part.num_targets for part in parts) * 2 == 64


def test_a_tokenizer_with_too_few_tokens_is_refused_before_a_batch(dataset: TokenDataset) -> None:
    sampling = replace(dataset.sampling, span_corruption=SpanCorruption(share=0.6))
    with pytest.raises(OpenwaferError, match=r"'<extra_id_4>' for span_corruption, of which a sam"):
        replace(dataset, sampling=sampling)


def test_two_changes_of_the_samples_are_refused() -> None:
    with pytest.raises(InvalidFieldError, match="masking is given as well"):
        Sampling(masking=Masking(), span_corruption=SpanCorruption())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 1.0}, "expected above 0 and below 1, found 1"),
        ({"mean_length": 0.5}, "expected at least 1, found 0.5"),
        ({"token": "<x>"}, "expected a name with {} for the number of a span, found '<x>'"),
    ],
)
def test_values_beyond_what_there_is_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message):
        SpanCorruption(**values)  # type: ignore[arg-type]
