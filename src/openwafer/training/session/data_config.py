"""The config sections that say which tokens a step trains on."""

from dataclasses import dataclass
from pathlib import Path

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.diagnostics import counted
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    SavedTokenizer,
    SizeChange,
    TokenizerTraining,
)
from openwafer.training.data.dataset import BatchSizes


@dataclass(frozen=True)
class BatchConfig:
    """How much a step trains on, and in how many pieces.

    Attributes:
        size: samples of a step, over all micro-batches; before the first change of `schedule`.
        sequence_length: tokens of a sample.
        micro_batches: how many equal pieces the samples are computed in; default 1.
        micro_batch_size: samples of a piece, in place of `micro_batches`.
        schedule: sizes that hold from later steps on. Micro-batches stay as large as before; a step
            has more of them.
    """

    size: int = 8
    sequence_length: int = 512
    micro_batches: int | None = None
    micro_batch_size: int | None = None
    schedule: tuple[SizeChange, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("size", 1),
            ("sequence_length", 2),
            ("micro_batches", 1),
            ("micro_batch_size", 1),
        ):
            found = getattr(self, name)
            if found is not None and found < least:
                raise InvalidFieldError(name, f"expected at least {least}, found {found}")
        if self.micro_batches is not None and self.micro_batch_size is not None:
            raise InvalidFieldError(
                "micro_batch_size",
                f"{self.micro_batch_size} stands beside micro_batches: {self.micro_batches}",
                help="leave one of the two out",
            )
        for name in ("micro_batches", "micro_batch_size"):
            found = getattr(self, name)
            if found is not None and self.size % found:
                raise InvalidFieldError(
                    name,
                    f"{found} does not divide the batch size {self.size}",
                    help=f"choose one of {', '.join(map(str, _divisors(self.size)))}",
                )
        for change in BatchSizes(self.size, self.schedule).changes:
            if change.size % self.samples_of_piece:
                raise InvalidFieldError(
                    "schedule",
                    f"the size {change.size} from step {change.from_step} on is no multiple of the "
                    f"micro-batch, which has {counted(self.samples_of_piece, 'sample')}",
                    help=f"choose {_multiples(change.size, self.samples_of_piece)}, or a smaller "
                    "micro_batch_size",
                )

    @property
    def sizes(self) -> BatchSizes:
        """Samples of each step."""
        return BatchSizes(self.size, self.schedule)

    @property
    def samples_of_piece(self) -> int:
        """Samples of a micro-batch, in every step."""
        return self.micro_batch_size or self.size // (self.micro_batches or 1)

    @property
    def num_micro_batches(self) -> int:
        """Equal pieces of a step before the first change."""
        return self.micro_batches_at(0)

    @property
    def fewest_micro_batches(self) -> int:
        """Of a step of the smallest size."""
        return min(self.sizes.all) // self.samples_of_piece

    @property
    def most_micro_batches(self) -> int:
        """Of a step of the largest size."""
        return max(self.sizes.all) // self.samples_of_piece

    def micro_batches_at(self, step: int) -> int:
        """Equal pieces of a step."""
        return self.sizes.at(step) // self.samples_of_piece


@dataclass(frozen=True)
class TokensConfig:
    """Where tokens come from; see :class:`openwafer.training.data.DataConfig` for most keys.

    Attributes:
        source: the documents.
        tokenizer: how they become tokens; ``None`` takes the tokenizer of a saved model, or else
            trains one on the source.
        validation_share: share of the documents kept for evaluation.
        split_seed: decides which documents.
        shard_tokens: size of a file of tokens.
        cross_documents: samples run across documents; otherwise each holds one, padded.
        folder: where the tokens are kept, to share them between runs; ``None`` is the run's own.
    """

    source: DataSource
    tokenizer: TokenizerTraining | SavedTokenizer | None = None
    validation_share: float = DataConfig.validation_share
    split_seed: int = DataConfig.split_seed
    shard_tokens: int = DataConfig.shard_tokens
    cross_documents: bool = True
    folder: Path | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        # Mistakes are told while the config is read, where the keys stand.
        self.preparation(BatchConfig(), 0, TokenizerTraining())

    def preparation(
        self, batch: BatchConfig, seed: int, tokenizer: TokenizerTraining | SavedTokenizer
    ) -> DataConfig:
        """What to prepare.

        Args:
            batch: how samples are cut and grouped.
            seed: key of their order.
            tokenizer: what to use where none is named.
        """
        return DataConfig(
            source=self.source,
            tokenizer=self.tokenizer or tokenizer,
            sampling=Sampling(
                batch.sequence_length, batch.size, seed, self.cross_documents, batch.schedule
            ),
            validation_share=self.validation_share,
            split_seed=self.split_seed,
            shard_tokens=self.shard_tokens,
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _multiples(number: int, unit: int) -> str:
    """The multiples of a unit next to a number."""
    below = number // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)
