"""The table of architectures that streamed training is checked on, row by row."""

import pytest

from tests.tables import case
from tests.training.models.architecture import Architecture
from tests.training.models.decoders import DECODERS
from tests.training.models.encoder_decoders import ENCODER_DECODERS
from tests.training.models.encoders import ENCODERS
from tests.training.models.mixtures import MIXTURES
from tests.training.models.perception import PERCEPTION
from tests.training.models.speech import SPEECH

__all__ = ["ARCHITECTURES", "BY_DEFAULT", "FAMILIES", "Architecture", "family_rows"]

ARCHITECTURES = (*DECODERS, *MIXTURES, *ENCODERS, *ENCODER_DECODERS, *PERCEPTION, *SPEECH)
# One row of each mechanism is trained by default, for fewer steps: dropout, a tied head, windows,
# routed and shared experts, states that recur, layers that share weights or are skipped, positions
# of a decoder that reads an encoder, running statistics, two towers, weights with a norm.
BY_DEFAULT = frozenset(
    """llama-dropout gpt2-dropout gemma3 deepseek-v3 xlstm albert t5-dropout bart-layerdrop-dropout
    resnet clip whisper wav2vec2""".split()  # noqa: SIM905 - reads as the list it is
)
# Beside those, four whose classes the library writes or builds in other ways.
FAMILIES = BY_DEFAULT | {"llava", "mixtral", "modernbert", "swin"}
family_rows = pytest.mark.parametrize(
    "row",
    [case(row, by_default=row.name in FAMILIES, id=row.name) for row in ARCHITECTURES],
)
