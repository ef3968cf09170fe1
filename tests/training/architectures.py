"""The table of architectures that streamed training is checked on, row by row."""

import pytest

from tests.tables import case
from tests.training.models.architecture import Architecture
from tests.training.models.decoders import DECODERS
from tests.training.models.encoders import ENCODER_DECODERS, ENCODERS
from tests.training.models.mixtures import MIXTURES
from tests.training.models.perception import PERCEPTION

__all__ = ["ARCHITECTURES", "FAMILIES", "Architecture", "family_rows"]

ARCHITECTURES = (*DECODERS, *MIXTURES, *ENCODERS, *ENCODER_DECODERS, *PERCEPTION)
# One row of each.
FAMILIES = frozenset(
    """llama-dropout mistral qwen3 gpt2-dropout gpt-neox gpt-j opt bloom-dropout falcon phi gemma3
    olmo2 cohere starcoder2 mixtral deepseek-v3 mamba bert-dropout roberta albert deberta-v2
    modernbert t5-dropout bart pegasus vit resnet swin clip llava whisper""".split()  # noqa: SIM905 - reads as the list it is
)
family_rows = pytest.mark.parametrize(
    "row",
    [case(row, by_default=row.name in FAMILIES, id=row.name) for row in ARCHITECTURES],
)
