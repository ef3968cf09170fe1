"""What must be the same for runs whose losses are compared: their tokens and conditions."""

from dataclasses import dataclass

from openwafer.training.data import TokenDataset
from openwafer.training.metrics.run_record import TokenIdentity
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import MatmulPrecision, ScheduleConfig, Weights


@dataclass(frozen=True)
class RunConditions:
    """Conditions of a run's held-out losses.

    Attributes:
        precision: number formats of forwards, of weights, and of products if torch is told one.
        sequence_length: in tokens.
        sparsity: mean share of zeros in the weights that are sparse; 0 where none are.
        schedule: how the learning rate falls, whatever the number of steps.
        held_out_tokens: most tokens that an evaluation takes; None where there is none.
    """

    precision: str
    sequence_length: int
    sparsity: float
    schedule: str
    held_out_tokens: int | None


def token_identity(dataset: TokenDataset) -> TokenIdentity:
    """Which tokens a run trains on."""
    return TokenIdentity(dataset.tokenizer.fingerprint, dataset.content_fingerprint)


def run_conditions(config: RunConfig, sparsity: float) -> RunConditions:
    """The conditions of a run whose sparse weights have that mean `sparsity`."""
    batch = config.batch
    samples = None if config.evaluate is None else config.evaluate.batches * batch.size
    return RunConditions(
        precision=_formats(config),
        sequence_length=batch.sequence_length,
        sparsity=sparsity,
        schedule=_describe(config.schedule),
        held_out_tokens=None if samples is None else samples * batch.sequence_length,
    )


def _formats(config: RunConfig) -> str:
    weights = "" if config.weights is Weights.FP32 else f" of {config.weights}"
    products = config.matmul_precision
    told = "" if products is MatmulPrecision.HIGHEST else f", {products} products"
    return f"{config.precision}{weights}{told}"


def _describe(schedule: ScheduleConfig) -> str:
    """Its name and those options that do not count steps."""
    kept = sorted(schedule.options.items())
    shown = [f"{name} {value}" for name, value in kept if not name.startswith("num_")]
    return ", ".join([schedule.name, *shown])
