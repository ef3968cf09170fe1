"""Batches of token sequences; which ones a step sees depends on seed and step alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from openwafer.config import InvalidFieldError, PathLike, path_of
from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.training.data.infilling import FillInTheMiddle, Marks, move_middles
from openwafer.training.data.masking import Masking, Vocabulary, hide
from openwafer.training.data.mix import Mix, check_shares
from openwafer.training.data.sample_order import keys_of, sample_ids
from openwafer.training.data.samples import (
    JoinedSamples,
    Samples,
    SeparateSamples,
    ShiftedSamples,
    Spans,
    TokenStream,
)
from openwafer.training.data.shards import INDEX_FILE, Index, Split, open_shards, read_index
from openwafer.training.data.span_corruption import SpanCorruption, corrupt, span_tokens
from openwafer.training.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from openwafer.training.labels import IGNORED_LABEL


@dataclass(frozen=True)
class SizeChange:
    """A batch size that holds from a step on.

    Attributes:
        from_step: the first step of that size, counted from 0.
        size: samples of a step.
    """

    from_step: int
    size: int


@dataclass(frozen=True)
class BatchSizes:
    """Batch sizes of all steps.

    Attributes:
        first: samples of a step before the first change.
        changes: later sizes, in the order of their steps.

    Raises:
        InvalidFieldError: ``schedule`` with a step that is not behind the one before, or a size
            below 1 or equal to the one before.
    """

    first: int
    changes: tuple[SizeChange, ...] = ()

    def __post_init__(self) -> None:
        for before, change in pairwise((SizeChange(0, self.first), *self.changes)):
            if change.from_step <= before.from_step:
                raise InvalidFieldError(
                    "schedule",
                    f"expected a from_step behind step {before.from_step}, found "
                    f"{change.from_step}",
                    help="write the changes in the order of their steps, the first at step 1 or "
                    "later: batch.size holds before it",
                )
            if change.size < 1:
                raise InvalidFieldError(
                    "schedule",
                    f"expected a size of at least 1 from step {change.from_step} on, found "
                    f"{change.size}",
                )
            if change.size == before.size:
                raise InvalidFieldError(
                    "schedule",
                    f"the size from step {change.from_step} on is {change.size}, as before",
                    help="leave that change out",
                )

    @property
    def all(self) -> tuple[int, ...]:
        """Every size, in the order of steps."""
        return (self.first, *(change.size for change in self.changes))

    def at(self, step: int) -> int:
        """Samples of a step."""
        held = [change.size for change in self.changes if change.from_step <= step]
        return held[-1] if held else self.first

    def before(self, step: int) -> int:
        """Samples of all steps before one: its position in the stream of samples."""
        return sum(size * steps for size, steps in self.spans(step))

    def steps_of(self, num_samples: int) -> int:
        """The fewest steps that take so many samples in all."""
        first, before = 0, 0
        for change in self.changes:
            there = before + (change.from_step - first) * self.at(first)
            if there >= num_samples:
                break
            first, before = change.from_step, there
        return first - (before - num_samples) // self.at(first)

    def spans(self, steps: int) -> Iterator[tuple[int, int]]:
        """Each size with the number of the first `steps` steps that have it."""
        starts = [0, *(min(change.from_step, steps) for change in self.changes), steps]
        for size, (start, end) in zip(self.all, pairwise(starts), strict=True):
            if start < end:
                yield size, end - start

    def until(self, step: int) -> "BatchSizes":
        """The changes that the steps before `step` know of."""
        return BatchSizes(self.first, tuple(c for c in self.changes if c.from_step < step))

    def __str__(self) -> str:
        changes = [f"{change.size} from step {change.from_step} on" for change in self.changes]
        return ", ".join([f"{self.first} samples a step", *changes])


CHANGES = ("masking", "fill_in_the_middle", "span_corruption")
"""Fields of a sampling of which one at most says what is done to samples."""


@dataclass(frozen=True)
class Sampling:
    """How samples are cut, grouped and ordered; changing it never tokenises again.

    Attributes:
        sequence_length: tokens of a sample.
        global_batch: samples of a step, over all replicas and micro-batches.
        seed: key of the order.
        cross_documents: samples run across documents; otherwise each holds one document or a
            piece of one, padded.
        schedule: other sizes than `global_batch`, from later steps on.
        shares: of the samples that each source of a mix has; none where there is one source.
        masking, fill_in_the_middle, span_corruption: what is done to samples, one of them at most;
            all ``None`` learns the next token of the text as it is.
    """

    sequence_length: int = 512
    global_batch: int = 8
    seed: int = 0
    cross_documents: bool = True
    # Fingerprints of data with one batch size stay those of releases that had no schedule.
    schedule: tuple[SizeChange, ...] = field(default=(), repr=False)
    shares: tuple[float, ...] = field(default=(), repr=False)
    masking: Masking | None = field(default=None, repr=False)
    fill_in_the_middle: FillInTheMiddle | None = field(default=None, repr=False)
    span_corruption: SpanCorruption | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("sequence_length", 2), ("global_batch", 1)):
            found = getattr(self, name)
            if found < least:
                raise InvalidFieldError(name, f"expected at least {least}, found {found}")
        BatchSizes(self.global_batch, self.schedule)
        check_shares(self.shares, "shares")
        first, *others = [name for name in CHANGES if getattr(self, name) is not None] or [""]
        if others:
            raise InvalidFieldError(
                others[0],
                f"{first} is given as well, and samples are changed in one way",
                help="leave one of the two out",
            )

    @property
    def change(self) -> Masking | FillInTheMiddle | SpanCorruption | None:
        """What is done to samples."""
        return self.masking or self.fill_in_the_middle or self.span_corruption

    @property
    def sizes(self) -> BatchSizes:
        """Samples of each step, over all replicas and micro-batches."""
        return BatchSizes(self.global_batch, self.schedule)

    def until(self, step: int) -> "Sampling":
        """The same without what is to change at `step` or later."""
        return replace(self, schedule=self.sizes.until(step).changes)


@dataclass(frozen=True)
class Batch:
    """Samples of one step.

    Attributes:
        input_ids: int64, [samples, sequence].
        labels: int64, [samples, sequence]; equal to ``input_ids``, -100 on padding and on what
            is not learned, such as prompts. Position ``t`` is the target of ``t - 1``: the model
            shifts, as transformers models do. Of corrupted spans, what the decoder writes.
        attention_mask: int64, [samples, sequence], 1 on tokens and 0 on padding; ``None`` where
            nothing is padded.
        num_untaught: labels at the start of each sample that no loss counts: one where the next
            token is learned.
        row_ends: whether each sample begins, and whether it ends, where its document does, bool,
            [samples, 2]; ``None`` where samples go across documents.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None = None
    num_untaught: int = 1
    row_ends: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        mask = self.attention_mask
        return self.input_ids.numel() if mask is None else int(mask.sum())

    @property
    def without_padding(self) -> list[Tensor]:
        """The tokens of each sample."""
        mask = self.attention_mask
        rows = list(self.input_ids)
        if mask is None:
            return rows
        return [row[is_token.bool()] for row, is_token in zip(rows, mask, strict=True)]

    @property
    def num_targets(self) -> int:
        """Positions that add to the loss; the weight of this batch in a mean over batches."""
        return int((self.labels[:, self.num_untaught :] != IGNORED_LABEL).sum())

    def rows(self, start: int, stop: int) -> "Batch":
        """The samples from ``start`` up to ``stop``, as views."""
        mask, ends = self.attention_mask, self.row_ends
        return Batch(
            self.input_ids[start:stop],
            self.labels[start:stop],
            None if mask is None else mask[start:stop],
            self.num_untaught,
            None if ends is None else ends[start:stop],
        )


def _tokens_of(index: Index, split: Split) -> str:
    tokens = f"{index.tokenizer} {index.of_split(split)}"
    return f"{tokens} {index.parts_of(split)}" if index.parts else tokens


def _fingerprint(tokens: str, sampling: Sampling) -> str:
    content = f"{tokens} {sampling}"
    for later in (sampling.schedule, sampling.shares, sampling.change):
        content += f" {later}" if later else ""
    return xxhash.xxh3_128_hexdigest(content.encode())


def find_dataset(folder: PathLike, sampling: Sampling, fingerprint: str) -> "TokenDataset | None":
    """The train split of that fingerprint among what ``prepare`` made in a folder.

    Where it is not found and an index cannot be read, which may be its own, raises that error.
    """
    folder = path_of(folder, "folder")
    unreadable: OpenwaferError | None = None
    for found in sorted(folder.glob(f"*/{INDEX_FILE}")):
        try:
            index = read_index(found.parent)
        except OpenwaferError as problem:
            unreadable = unreadable or problem
        else:
            if _fingerprint(_tokens_of(index, Split.TRAIN), sampling) == fingerprint:
                return TokenDataset.open(found.parent, sampling)
    if unreadable is not None:
        raise unreadable
    return None


@dataclass(frozen=True, eq=False)
class TokenDataset:
    """One split of a data folder, as seen by one rank.

    Attributes:
        folder: holds dataset.json, the shards and the tokenizer.
        sampling: see ``Sampling``.
        split: see ``Split``.
        rank: takes the ``rank``-th contiguous slice of every global batch.
        world_size: number of ranks; divides every size of ``sampling.sizes``.
        stream: tokens of the split.
    """

    folder: Path
    sampling: Sampling
    split: Split
    rank: int
    world_size: int
    stream: TokenStream

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise error(
                "bad-rank",
                f"rank {self.rank} is not among {self.world_size} ranks",
                help="ranks count from 0 up to world_size - 1",
            )
        for batch in self.sampling.sizes.all:
            if batch % self.world_size:
                raise error(
                    "uneven-ranks",
                    f"a global batch of {batch} samples does not divide among {self.world_size} "
                    "ranks",
                    help=f"choose a global_batch that is a multiple of {self.world_size}",
                )
        num_shares = len(self.sampling.shares) or 1
        if num_shares != len(self._samples):
            raise error(
                "wrong-shares",
                f"{self.folder} has tokens of {counted(len(self._samples), 'source')}, and "
                f"sampling has shares of {num_shares}",
                help="give each source of the mix its share",
            )
        self._check_samples()
        # A tokenizer without the tokens that stand for others is told before the first batch.
        _ = self._special
        if self.sampling.span_corruption is not None and self.stream.is_marked:
            raise error(
                "marked-spans",
                f"{self.folder} has texts of which a part is learned, such as answers, and "
                "span_corruption learns whatever it leaves out",
                help="leave prompt_column out, or set learn: all",
            )

    def _check_samples(self) -> None:
        """Of each source something is trained on; held out may be documents of some."""
        counts = [samples.num_samples for samples in self._samples]
        short = [number for number, count in enumerate(counts, start=1) if count == 0]
        if not short or (self.split is not Split.TRAIN and len(short) < len(counts)):
            return
        _, part = list(self._parts())[short[0] - 1]
        source = f"source {short[0]} of the mix in " if len(counts) > 1 else ""
        raise error(
            "too-few-tokens",
            f"{source}the {self.split} split of {self.folder} has {part.num_tokens} tokens, fewer "
            f"than one sample of {self.sampling.sequence_length}"
            + (" with an answer to learn" if part.is_marked else ""),
            help="lower sequence_length, or give more text",
        )

    def _parts(self) -> Iterator[tuple[int, TokenStream]]:
        """The tokens of each source, and how many are before."""
        return self.stream.parts(self._index.parts_of(self.split))

    @classmethod
    def open(
        cls,
        folder: PathLike,
        sampling: Sampling,
        *,
        split: Split = Split.TRAIN,
        verify: bool = True,
    ) -> "TokenDataset":
        """Open a prepared folder for rank 0 of 1.

        Args:
            folder: made by ``prepare``.
            sampling: how to cut, group and order.
            split: which documents.
            verify: reads every shard once to compare its checksum.
        """
        folder = path_of(folder, "folder")
        stream = TokenStream(open_shards(folder, split, verify=verify))
        dataset = cls(folder, sampling, split, 0, 1, stream)
        expected, found = read_index(folder).tokenizer, dataset.tokenizer.fingerprint
        if found != expected:
            raise error(
                "tokenizer-mismatch",
                f"{folder / TOKENIZER_FILE} is not the tokenizer of the shards beside it: "
                f"expected {expected}, found {found}",
                help=f"restore it, or delete {folder}; the next run tokenises the source again",
            )
        return dataset

    def for_rank(self, rank: int, world_size: int) -> "TokenDataset":
        """The same data as rank ``rank`` of ``world_size`` sees it."""
        return replace(self, rank=rank, world_size=world_size)

    def for_split(self, split: Split, *, verify: bool = True) -> "TokenDataset":
        """Another split of the same folder, for the same rank."""
        stream = TokenStream(open_shards(self.folder, split, verify=verify))
        return replace(self, split=split, stream=stream)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder; a model needs ``vocab_size`` embeddings."""
        return load_tokenizer(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """Equal where every step sees equal batches; to compare on resume."""
        return _fingerprint(self._tokens, self.sampling)

    def fingerprint_until(self, step: int) -> str:
        """Equal where the steps before `step` see equal batches, whatever sizes come later."""
        return _fingerprint(self._tokens, self.sampling.until(step))

    @cached_property
    def _tokens(self) -> str:
        return _tokens_of(self._index, self.split)

    @cached_property
    def content_fingerprint(self) -> str:
        """Equal where the tokens of all splits are, however samples are cut and ordered."""
        splits = [self._index.of_split(split) for split in Split]
        return xxhash.xxh3_128_hexdigest(f"{self._index.tokenizer} {splits}".encode())

    @cached_property
    def _index(self) -> Index:
        return read_index(self.folder)

    @property
    def num_tokens(self) -> int:
        """Tokens of the split, ends of text included."""
        return self.stream.num_tokens

    @property
    def num_samples(self) -> int:
        """All samples, of all sources, over all ranks."""
        return sum(samples.num_samples for samples in self._samples)

    def batch(self, step: int) -> Batch:
        """This rank's samples of ``step``, counted from 0.

        The global batch is the next ``sampling.sizes.at(step)`` positions of the endless stream of
        shuffled epochs; a batch may end one epoch and begin the next.
        """
        return self._part(step, 0, self._num_own(step))

    def _num_own(self, step: int) -> int:
        """This rank's share of a step's samples."""
        return self.sampling.sizes.at(step) // self.world_size

    def _part(self, step: int, first: int, end: int) -> Batch:
        """This rank's samples of a step from one up to another."""
        start = self.sampling.sizes.before(step) + self.rank * self._num_own(step)
        positions = np.arange(start + first, start + end)
        return self._assemble(self._drawn(positions), positions)

    def _drawn(self, positions: NDArray[np.int64]) -> Spans:
        """Where the samples lie that the endless stream has at positions."""
        shares, seed = self.sampling.shares, self.sampling.seed
        if not shares:
            (samples,) = self._samples
            return samples.spans(sample_ids(positions, samples.num_samples, seed))
        starts, lengths = np.empty_like(positions), np.empty_like(positions)
        sources, places = Mix(shares).draw(positions)
        for source, samples in enumerate(self._samples):
            drawn = sources == source
            ids = sample_ids(places[drawn], samples.num_samples, seed)
            starts[drawn], lengths[drawn] = samples.spans(ids)
        return starts, lengths

    def micro_batches(self, step: int, num: int, wanted: range | None = None) -> tuple[Batch, ...]:
        """The samples of ``batch(step)`` in ``num`` equal parts, in order.

        Args:
            step: counted from 0.
            num: parts.
            wanted: which of them, neighbours; no others are read.
        """
        local = self._num_own(step)
        if num < 1 or local % num:
            raise error(
                "uneven-micro-batches",
                f"the {local} samples of a rank do not divide into {num} micro-batches",
                notes=(f"global batch {local * self.world_size}, ranks {self.world_size}",),
                help=f"choose a number of micro-batches that divides {local}",
            )
        size, wanted = local // num, wanted or range(num)
        batch = self._part(step, wanted.start * size, wanted.stop * size)
        return tuple(batch.rows(i * size, (i + 1) * size) for i in range(len(wanted)))

    def once(self) -> Iterator[Batch]:
        """Every sample of the split once, unshuffled, for evaluation; ranks share each batch.

        The first batches have samples of all sources of a mix, as many as each has of all.

        Batches have ``global_batch`` samples, whatever the schedule of the training split. The last
        one may be smaller, and is skipped on a rank that has no sample of it.
        """
        step = self.sampling.global_batch
        starts, lengths = self._all_spans()
        for start in range(0, self.num_samples, step):
            ids = np.arange(start, min(start + step, self.num_samples))
            mine = np.array_split(ids, self.world_size)[self.rank]
            if mine.size:
                # The same tokens are hidden in every evaluation, and others than in training.
                yield self._assemble((starts[mine], lengths[mine]), -1 - mine)

    def _all_spans(self) -> Spans:
        """Where all samples lie: those of a source in their order, sources evenly in between."""
        ids = [np.arange(samples.num_samples) for samples in self._samples]
        spans = [samples.spans(one) for samples, one in zip(self._samples, ids, strict=True)]
        order = np.argsort(np.concatenate([(one + 0.5) / one.size for one in ids]), kind="stable")
        starts, lengths = (np.concatenate(part)[order] for part in zip(*spans, strict=True))
        return starts, lengths

    @cached_property
    def _samples(self) -> tuple[Samples, ...]:
        """Those of each source."""
        return tuple(ShiftedSamples(self._cut(part), start) for start, part in self._parts())

    def _cut(self, stream: TokenStream) -> Samples:
        length = self.sampling.sequence_length
        samples: Samples
        if self.sampling.cross_documents:
            samples = JoinedSamples(stream.num_tokens, length)
        else:
            samples = SeparateSamples(stream.document_bounds(), length)
        return stream.taught(samples) if stream.is_marked else samples

    @cached_property
    def _special(self) -> Vocabulary | Marks | NDArray[np.int64] | None:
        """The tokens that stand for others in changed samples."""
        match self.sampling.change:
            case Masking(token=token):
                return Vocabulary.of(self.tokenizer, token)
            case FillInTheMiddle() as asked:
                return Marks.of(self.tokenizer, asked)
            case SpanCorruption() as asked:
                return span_tokens(self.tokenizer, asked, self.sampling.sequence_length)
            case None:
                return None

    def _assemble(self, spans: Spans, positions: NDArray[np.int64]) -> Batch:
        """The samples at spans; what is random in them is that of their positions."""
        length = self.sampling.sequence_length
        ids = self.stream.gather(spans, length, self.tokenizer.end_of_text_id)
        are_targets = is_token = np.arange(length) < spans[1][:, None]
        if self.stream.is_marked:
            are_targets = self.stream.are_targets(spans, length)
        keys = keys_of(positions, self.sampling.seed)
        shown, num_untaught = ids, 1
        labels: NDArray[np.int64] | None = None
        special = self._special
        match self.sampling.change:
            case Masking(share=share):
                assert isinstance(special, Vocabulary)
                shown, are_targets = hide(ids, are_targets, keys, special, share)
            case FillInTheMiddle() as asked:
                assert isinstance(special, Marks)
                shown, are_targets = move_middles(ids, are_targets, keys, special, asked)
                ids = shown
            case SpanCorruption() as asked:
                assert isinstance(special, np.ndarray)
                end = self.tokenizer.end_of_text_id
                shown, labels, is_token = corrupt(ids, spans[1], keys, special, end, asked)
                num_untaught = 0
            case None:
                pass
        if labels is None:
            labels = np.where(are_targets, ids, IGNORED_LABEL)
        mask = ends = None
        if not self.sampling.cross_documents:
            mask = torch.from_numpy(is_token).long()
            ends = torch.from_numpy(self._row_ends(spans))
        return Batch(torch.from_numpy(shown), torch.from_numpy(labels), mask, num_untaught, ends)

    def _row_ends(self, spans: Spans) -> NDArray[np.bool_]:
        """Whether spans begin, and end, where documents do, [spans, 2]."""
        places = np.stack((spans[0], spans[0] + spans[1]), 1)
        found: NDArray[np.bool_] = self._bounds[np.searchsorted(self._bounds, places)] == places
        return found

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        return self.stream.document_bounds()
