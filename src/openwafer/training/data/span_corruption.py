"""Span corruption: stretches of a text are left out, and a decoder writes what stood there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError
from openwafer.training.data.masking import check_share
from openwafer.training.data.sample_order import mix, words_of
from openwafer.training.data.tokenizer import Tokenizer
from openwafer.training.labels import IGNORED_LABEL


@dataclass(frozen=True)
class SpanCorruption:
    """Leaves spans out of each sample, anew each time that it comes (C. Raffel et al., JMLR 2020).

    Attributes:
        share: of the tokens that are left out, above 0 and below 1.
        mean_length: of a span, in tokens; at least 1.
        token: names of the tokens that stand in the spans' places, with ``{}`` for their number.
    """

    share: float = 0.15
    mean_length: float = 3.0
    token: str = "<extra_id_{}>"

    def __post_init__(self) -> None:
        check_share(self.share)
        if not self.mean_length >= 1:
            raise InvalidFieldError(
                "mean_length", f"expected at least 1, found {self.mean_length:g}", help="3 is usual"
            )
        if "{}" not in self.token:
            raise InvalidFieldError(
                "token",
                f"expected a name with {{}} for the number of a span, found {self.token!r}",
                help="T5's are <extra_id_{}>",
            )

    def counts(self, length: int) -> tuple[int, int]:
        """Tokens that are left out of so many, and in how many spans."""
        num_tokens = min(max(round(length * self.share), 1), length - 1)
        num_spans = max(round(num_tokens / self.mean_length), 1)
        return num_tokens, min(num_spans, num_tokens, length - num_tokens)

    def sizes(self, length: int) -> tuple[int, int]:
        """Tokens of the encoder's text and of the decoder's, ends included, of so many."""
        num_tokens, num_spans = self.counts(length)
        return length - num_tokens + num_spans + 1, num_tokens + num_spans + 1


def span_tokens(tokenizer: Tokenizer, asked: SpanCorruption, length: int) -> NDArray[np.int64]:
    """Ids of the tokens that stand for the spans of a sample. Raises ``no-special-token``."""
    _, num_spans = asked.counts(length)
    names = [asked.token.replace("{}", str(number)) for number in range(num_spans)]
    use = f"span_corruption, of which a sample of {length} tokens needs {num_spans}"
    return np.array([tokenizer.id_of(name, use) for name in names])


def corrupt(
    ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    keys: NDArray[np.uint64],
    tokens: NDArray[np.int64],
    end_of_text: int,
    asked: SpanCorruption,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """What the encoder reads, what the decoder writes, and which of the first are no padding.

    Args:
        ids: of the samples, [samples, tokens].
        lengths: tokens of each without padding.
        keys: of their random numbers, [samples].
        tokens: that stand for the spans, in their order.
        end_of_text: ends both texts, and pads the encoder's.
        asked: how much is left out.

    Returns:
        ids [samples, n], labels [samples, m] with -100 as padding, and a mask [samples, n], where
        n and m are :meth:`SpanCorruption.sizes` of a full sample.
    """
    sizes = asked.sizes(ids.shape[1])
    read = np.full((len(ids), sizes[0]), end_of_text)
    written = np.full((len(ids), sizes[1]), IGNORED_LABEL)
    is_token = np.zeros(read.shape, np.bool_)
    for row, length in enumerate(lengths):
        is_out = _left_out(int(length), keys[row], asked)
        texts = [_told(ids[row, :length], out, tokens) for out in (is_out, ~is_out)]
        for target, text in zip((read, written), texts, strict=True):
            target[row, : text.size + 1] = (*text, end_of_text)
        is_token[row, : texts[0].size + 1] = True
    return read, written, is_token


def _left_out(length: int, key: np.uint64, asked: SpanCorruption) -> NDArray[np.bool_]:
    """Which tokens are left out: spans and what is between take turns, and a span ends the text."""
    num_tokens, num_spans = asked.counts(length)
    words = words_of(np.array([key, mix(np.array([key]))[0]]), length)
    kept = _cut(length - num_tokens, num_spans, words[0])
    left_out = _cut(num_tokens, num_spans, words[1])
    runs = np.stack((kept, left_out), axis=1).ravel()
    return np.repeat(np.tile((False, True), num_spans), runs)


def _cut(total: int, parts: int, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Lengths of so many parts of a total, each at least 1; every way to cut is equally likely."""
    cuts = np.sort(np.argsort(words[: total - 1], kind="stable")[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)


def _told(
    ids: NDArray[np.int64], is_out: NDArray[np.bool_], tokens: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The text with one token for each stretch that is left out."""
    begins = is_out & ~np.concatenate(([False], is_out[:-1]))
    numbers = np.cumsum(begins) - 1
    return np.where(begins, tokens[numbers], ids)[~is_out | begins]
