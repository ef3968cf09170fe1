"""Tokens that are hidden from a model, which finds them by those on both sides."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError
from openwafer.training.data.sample_order import mix, words_of
from openwafer.training.data.tokenizer import Tokenizer

_MASKED: Final = 0.8
_REPLACED: Final = 0.1
"""Shares of hidden tokens (J. Devlin et al., NAACL 2019); the others stay, and are learned too."""


@dataclass(frozen=True)
class Masking:
    """Hides tokens of each sample, anew each time that it comes.

    Attributes:
        share: of the tokens that are hidden and learned, above 0 and below 1.
        token: the one that stands in their place; ``None`` is the tokenizer's own mask token.
    """

    share: float = 0.15
    token: str | None = None

    def __post_init__(self) -> None:
        check_share(self.share)


def check_share(share: float) -> None:
    """Refuse a share of a sample's tokens, as a field of that name, that is none or all of them."""
    if not 0 < share < 1:
        raise InvalidFieldError(
            "share", f"expected above 0 and below 1, found {share:g}", help="0.15 is usual"
        )


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What may stand in a hidden token's place.

    Attributes:
        mask_id: the mask token.
        is_special: whether each id is a special token, which is not hidden, [ids].
        plain: the other ids.
    """

    mask_id: int
    is_special: NDArray[np.bool_]
    plain: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Tokenizer, token: str | None) -> "Vocabulary":
        """That of a tokenizer. Raises ``no-mask-token``."""
        is_special = np.zeros(tokenizer.vocab_size, np.bool_)
        is_special[[*tokenizer.special_ids, tokenizer.end_of_text_id]] = True
        return cls(tokenizer.mask_id(token), is_special, np.flatnonzero(~is_special))


def hide(
    ids: NDArray[np.int64],
    are_targets: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    vocabulary: Vocabulary,
    share: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """What a model is shown of samples, and which tokens it is to find; both [samples, tokens].

    A sample has at least one hidden token, and never its first, as no loss of the next token
    counts that either. Where it has none but special tokens, one of these is hidden.

    Args:
        ids: of the samples, [samples, tokens].
        are_targets: which may be learned, [samples, tokens].
        keys: of their random numbers, [samples].
        vocabulary: see :class:`Vocabulary`.
        share: of tokens that are hidden.
    """
    words = words_of(keys, ids.shape[1])
    drawn = words / 2.0**64
    may_hide = are_targets & ~vocabulary.is_special[ids]
    may_hide[:, 0] = False
    # Beyond all others where a token may not be hidden, and last of all where it is padding.
    least = np.where(may_hide, drawn, 1 + drawn + ~are_targets)
    least[:, 0] = 4.0
    are_hidden = (least < share) | (least == least.min(axis=1, keepdims=True))
    again = mix(words)
    ways = again / 2.0**64
    others = vocabulary.plain[mix(again) % np.uint64(vocabulary.plain.size)]
    shown = np.where(ways < _MASKED, vocabulary.mask_id, ids)
    is_replaced = (ways >= _MASKED) & (ways < _MASKED + _REPLACED)
    shown = np.where(is_replaced, others, shown)
    return np.where(are_hidden, shown, ids), are_hidden
