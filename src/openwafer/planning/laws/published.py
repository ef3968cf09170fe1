"""Laws as their authors published them.

Losses are in nats a token of the authors' own tokenizer and test set: compare differences and
exponents with those of other data, not losses.
"""

from dataclasses import dataclass
from typing import Final

from openwafer.planning.laws.compute_law import ComputeLaw

FLOPS_PER_PETAFLOP_DAY = 1e15 * 24 * 60 * 60

CEREBRAS_GPT: Final = ComputeLaw(
    scale_flops=5.984e22,
    exponent=0.0737,
    floor_loss=0.5066,
    source="Dey et al. 2023, arXiv 2304.03208, eq. 1: the Pile",
)

KAPLAN_COMPUTE: Final = ComputeLaw(
    scale_flops=3.1e8 * FLOPS_PER_PETAFLOP_DAY,
    exponent=0.050,
    floor_loss=0.0,
    source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.3: WebText2, at the critical batch",
)


@dataclass(frozen=True)
class CriticalBatch:
    """``tokens = scale_tokens / loss ** (1 / exponent)``: larger batches save little time."""

    scale_tokens: float
    exponent: float
    source: str

    def tokens_at(self, loss: float) -> float:
        """Tokens of the batch at a loss in nats a token."""
        return float(self.scale_tokens / loss ** (1 / self.exponent))


KAPLAN_BATCH: Final = CriticalBatch(
    scale_tokens=2e8, exponent=0.21, source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.4"
)


@dataclass(frozen=True)
class SizeLaw:
    """``loss = (scale_parameters / parameters) ** exponent``: of models trained to the end."""

    scale_parameters: float
    exponent: float
    source: str

    def loss_of(self, parameters: float) -> float:
        """The loss in nats a token of a model of so many parameters."""
        return float((self.scale_parameters / parameters) ** self.exponent)


KAPLAN_SIZE: Final = SizeLaw(
    scale_parameters=8.8e13, exponent=0.076, source="Kaplan et al. 2020, arXiv 2001.08361, eq. 1.1"
)
