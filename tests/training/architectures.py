"""The table of architectures that streamed training is checked on, row by row."""

from tests.training.models.architecture import Architecture
from tests.training.models.decoders import DECODERS
from tests.training.models.encoders import ENCODER_DECODERS, ENCODERS
from tests.training.models.mixtures import MIXTURES
from tests.training.models.perception import PERCEPTION

__all__ = ["ARCHITECTURES", "Architecture"]

ARCHITECTURES = (*DECODERS, *MIXTURES, *ENCODERS, *ENCODER_DECODERS, *PERCEPTION)
