"""Fill in the middle: texts are written with their middle last, and a model learns to write it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError
from openwafer.training.data.sample_order import words_of
from openwafer.training.data.tokenizer import Tokenizer

_NUM_MARKS: Final = 3
_NUM_DRAWS: Final = 4
"""Of a piece of text: whether it is cut, in which order it is written, and its two cuts."""


@dataclass(frozen=True)
class FillInTheMiddle:
    """Moves the middle of texts behind their end (M. Bavarian et al., arXiv 2207.14255).

    Attributes:
        share: of the pieces of text that are written so, above 0 and up to 1.
        suffix_first_share: of these, how many have the suffix before the prefix.
        prefix, suffix, middle: tokens before the three parts.
    """

    share: float = 0.5
    suffix_first_share: float = 0.5
    prefix: str = "<fim_prefix>"
    suffix: str = "<fim_suffix>"
    middle: str = "<fim_middle>"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidFieldError(
                "share",
                f"expected above 0 and up to 1, found {self.share:g}",
                help="0.5 is usual; leave fill_in_the_middle out for none",
            )
        if not 0 <= self.suffix_first_share <= 1:
            raise InvalidFieldError(
                "suffix_first_share", f"expected from 0 to 1, found {self.suffix_first_share:g}"
            )


@dataclass(frozen=True)
class Marks:
    """Ids of the tokens before the three parts, and of the one that ends a document."""

    prefix: int
    suffix: int
    middle: int
    end_of_text: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, asked: FillInTheMiddle) -> "Marks":
        """Those of a tokenizer. Raises ``no-special-token``."""
        names = (asked.prefix, asked.suffix, asked.middle)
        prefix, suffix, middle = (
            tokenizer.id_of(name, f"fill_in_the_middle.{key}")
            for key, name in zip(("prefix", "suffix", "middle"), names, strict=True)
        )
        return cls(prefix, suffix, middle, tokenizer.end_of_text_id)


def move_middles(
    ids: NDArray[np.int64],
    are_targets: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    marks: Marks,
    asked: FillInTheMiddle,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The samples with middles moved, and which tokens are targets; both [samples, tokens].

    A piece is what a sample has of one document. It keeps its length: where it is cut, its first
    three tokens make room for the marks, so that the end of a document, which says that the
    middle is whole, stays. Marks are targets.

    Args:
        ids: of the samples, [samples, tokens].
        are_targets: which may be learned, [samples, tokens].
        keys: of their random numbers, [samples].
        marks: see :class:`Marks`.
        asked: how often, and in which order.
    """
    ids, are_targets = ids.copy(), are_targets.copy()
    num_samples, length = ids.shape
    draws = words_of(keys, _NUM_DRAWS * length).reshape(num_samples, length, _NUM_DRAWS) / 2.0**64
    for row in range(num_samples):
        ends = np.flatnonzero(ids[row] == marks.end_of_text)
        for start, end in zip((0, *(ends + 1)), (*ends, length), strict=True):
            if end - start <= _NUM_MARKS or draws[row, start, 0] >= asked.share:
                continue
            order = _order(end - start, draws[row, start, 1:], marks, asked.suffix_first_share)
            is_mark = order < 0
            piece = slice(start, end)
            ids[row, piece] = np.where(is_mark, -order, ids[row, piece][order])
            are_targets[row, piece] = is_mark | are_targets[row, piece][order]
    return ids, are_targets


def _order(
    length: int, draws: NDArray[np.float64], marks: Marks, suffix_first_share: float
) -> NDArray[np.int64]:
    """Which token of a piece comes at each place, or minus the id of a mark."""
    places = np.arange(_NUM_MARKS, length)
    # The two cuts may fall together, and at the ends, as they do where one types.
    first, second = np.sort((draws[1:] * (places.size + 1)).astype(np.int64))
    prefix, middle, suffix = places[:first], places[first:second], places[second:]
    if draws[0] < suffix_first_share:
        parts = [-marks.prefix, -marks.suffix, *suffix, -marks.middle, *prefix, *middle]
    else:
        parts = [-marks.prefix, *prefix, -marks.suffix, *suffix, -marks.middle, *middle]
    return np.array(parts, np.int64)
