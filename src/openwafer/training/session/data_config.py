"""The config sections that say which tokens a step trains on."""

from dataclasses import dataclass
from pathlib import Path

from openwafer.config import InvalidFieldError
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    SavedTokenizer,
    TokenizerTraining,
)


@dataclass(frozen=True)
class BatchConfig:
    """How much a step trains on, and in how many pieces.

    Attributes:
        size: samples of a step, over all micro-batches.
        sequence_length: tokens of a sample.
        micro_batches: how many equal pieces the samples are computed in; default 1.
        micro_batch_size: samples of a piece, in place of `micro_batches`.
    """

    size: int = 8
    sequence_length: int = 512
    micro_batches: int | None = None
    micro_batch_size: int | None = None

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

    @property
    def num_micro_batches(self) -> int:
        """Equal pieces of a step."""
        if self.micro_batch_size is not None:
            return self.size // self.micro_batch_size
        return self.micro_batches or 1


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
            sampling=Sampling(batch.sequence_length, batch.size, seed, self.cross_documents),
            validation_share=self.validation_share,
            split_seed=self.split_seed,
            shard_tokens=self.shard_tokens,
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
