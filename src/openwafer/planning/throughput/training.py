"""Predicts the time and energy of a whole training, and the gain of more systems."""

from openwafer.planning.laws import KAPLAN_BATCH, KAPLAN_SIZE, CriticalBatch, SizeLaw
from openwafer.planning.systems import System
from openwafer.planning.throughput.passes import DENSE_BYTES, balance_tokens

KAPLAN_TOKENS_SCALE, KAPLAN_TOKENS_EXPONENT = 5e3, 0.74
"""Tokens that keep a model from overfitting: Kaplan et al. 2020, arXiv 2001.08361, eq. 4.4."""


def training_seconds(
    flops: float, system: System, num_systems: int, utilisation: float, gain: float = 1.0
) -> float:
    """Of `flops`, counted as if dense, at a share of the peak of all systems.

    `gain` is how many times as fast sparse weights make it.
    """
    return flops / (num_systems * system.peak.value * utilisation * gain)


def affordable_flops(seconds: float, system: System, num_systems: int, utilisation: float) -> float:
    """That so many systems do in so many seconds at a share of their peak."""
    return seconds * num_systems * system.peak.value * utilisation


def energy_joules(seconds: float, system: System, num_systems: int) -> float:
    """What systems take in so many seconds at their power; nothing beside them is counted."""
    return seconds * num_systems * system.power.value


def reached_utilisation(
    flops: float, seconds: float, system: System, num_systems: int = 1
) -> float:
    """The share of the peak that did `flops` in so many seconds."""
    return flops / (seconds * num_systems * system.peak.value)


def tokens_without_overfitting(parameters: float) -> float:
    """The least tokens for a model: ``5e3 parameters ** 0.74`` (Kaplan et al. 2020, eq. 4.4)."""
    return float(KAPLAN_TOKENS_SCALE * parameters**KAPLAN_TOKENS_EXPONENT)


def critical_batch_tokens(
    parameters: float, size: SizeLaw = KAPLAN_SIZE, batch: CriticalBatch = KAPLAN_BATCH
) -> float:
    """Tokens of the critical batch at the loss of a model that is trained to the end."""
    return batch.tokens_at(size.loss_of(parameters))


def speedup_to_loss(num_systems: int, tokens_per_system: float, critical_batch: float) -> float:
    """How many times sooner a loss is reached when systems bring their own tokens to each step.

    ``n (1 + b / B) / (1 + n b / B)``: a batch of b tokens needs ``1 + B / b`` times the fewest
    steps (Kaplan et al. 2020, arXiv 2001.08361, eq. 5.4), and a step takes as long on any number
    of systems.
    """
    share = tokens_per_system / critical_batch
    return num_systems * (1 + share) / (1 + num_systems * share)


def most_systems_in_proportion(
    batch_tokens: float,
    system: System,
    utilisation: float,
    bytes_per_weight: float = DENSE_BYTES,
) -> float:
    """Systems up to which a step of fixed batch gets shorter in proportion.

    Beyond them a system has fewer tokens than `balance_tokens`, and waits for weights.
    """
    return batch_tokens / balance_tokens(system, utilisation, bytes_per_weight)
