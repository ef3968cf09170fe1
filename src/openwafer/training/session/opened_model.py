"""A model of a run with what executes it: its loss on held-out documents, and texts that it writes.

Of all texts that are written, each gets a token whenever the model's layers pass.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import psutil
import torch
import transformers
from torch import nn

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.training.data import Split, TokenDataset
from openwafer.training.data.tokenizer import Tokenizer
from openwafer.training.models.key_values import (
    forward_from,
    kept_bytes,
    new_key_values,
    shorten,
)
from openwafer.training.models.loss import LOSS
from openwafer.training.models.transformers_model import is_of_library
from openwafer.training.session.config import RunConfig
from openwafer.training.session.constrained import Constraint
from openwafer.training.session.forward import forward_of, model_inputs, require_writer
from openwafer.training.session.writing import Sampling, Writing
from openwafer.training.sparsity.packed_linear import multiplying_few_tokens
from openwafer.training.sparsity.products import FewTokens
from openwafer.training.store import Part
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.layers import PINNED

FREE_PARTS: Final = 4
"""Patterns may take one of so many parts of the free memory."""


@dataclass(frozen=True)
class OpenedModel:
    """A model whose weights are in a store, or on the device.

    Attributes:
        config: of the run.
        model: in training mode.
        tokenizer: of its tokens.
        execution: runs its passes.
        steps_done: training steps behind the weights.
        planned: what passes go by.
    """

    config: RunConfig
    model: nn.Module
    tokenizer: Tokenizer
    execution: Execution
    steps_done: int
    planned: Planned

    @property
    def room_bytes(self) -> int | None:
        """Of the device, beside the weights; ``None`` where it has no cap."""
        return room_beside_weights(self.planned)


def room_beside_weights(planned: Planned) -> int | None:
    """Bytes of the device budget that the weights on the device leave; ``None`` for no budget."""
    budget = planned.given.device_memory_bytes
    if budget is None:
        return None
    schedule, layouts = planned.plan.schedule, planned.plan.layouts
    if schedule is None:
        return budget - sum(layout.part_bytes(Part.WEIGHTS) for layout in layouts.values())
    pinned = layouts[PINNED].part_bytes(Part.WEIGHTS) if PINNED in layouts else 0
    return budget - schedule.capacity_bytes - pinned


def held_out(dataset: TokenDataset) -> TokenDataset:
    """The validation split; raises ``no-such-split`` where it holds no documents."""
    return dataset.for_split(Split.VALIDATION, verify=False)


def check_evaluation(opened: OpenedModel, dataset: TokenDataset, num_batches: int) -> None:
    """See that a device with kernels of its own computes what :func:`evaluate` will ask for.

    Its micro-batches are those of training, but for one that has what is left of the samples.

    Raises:
        OpenwaferError: it does not, or has no room.
    """
    if not opened.planned.given.has_kernels:
        return
    size = opened.config.batch.samples_of_piece
    for batch in islice(dataset.once(), num_batches):
        left = len(batch.input_ids) % size
        if not left:
            continue
        try:
            opened.planned.try_pass(model_inputs(opened.model, batch.rows(0, left)))
        except OpenwaferError as cause:
            found = cause.diagnostics[0]
            length = opened.config.batch.sequence_length
            raise error(
                found.code,
                f"an evaluation's last micro-batch has {counted(left, 'sample')} of {length} "
                f"tokens, and others {size}: {found.message}",
                notes=found.notes,
                help=f"evaluate fewer batches, whose samples are a multiple of {size}; or "
                f"{found.help}",
            ) from cause


def evaluate(
    opened: OpenedModel, dataset: TokenDataset, num_batches: int, name: str = LOSS
) -> float:
    """Mean loss over the targets of the first batches of a split.

    A batch passes the layers in the micro-batches of training, so that it fits the device.

    Args:
        opened: the model.
        dataset: the split.
        num_batches: at most.
        name: of another scalar that forward returns; its mean is that over the samples.
    """
    opened.execution.flush()
    size = opened.config.batch.samples_of_piece
    device = opened.execution.device.torch_device
    total = 0.0
    total_weight = 0
    opened.model.eval()
    try:
        for batch in islice(dataset.once(), num_batches):
            starts = range(0, len(batch.input_ids), size)
            pieces = [batch.rows(start, start + size) for start in starts]
            losses = opened.execution.evaluate(
                [forward_of(opened.model, piece, device, name) for piece in pieces]
            )
            for piece, loss in zip(pieces, losses, strict=True):
                weight = piece.num_targets if name == LOSS else len(piece.input_ids)
                total += loss.item() * weight
                total_weight += weight
    finally:
        opened.model.train()
    return total / total_weight


@dataclass(frozen=True)
class GeneratedTexts:
    """What a model wrote.

    Attributes:
        step: training steps behind the model.
        texts: one a prompt, which is not repeated.
        pass_seconds: time of each pass, which gives a token to every text that is under way; its
            first one reads a text's prompt.
        pass_read_bytes: that each pass read from disk.
        device_bytes_peak: most bytes on the device meanwhile; ``None`` where it does not tell.
        weight_bytes: of all weights.
        num_refused: tokens of each text that its constraint refused; empty without one.
    """

    step: int
    texts: tuple[str, ...]
    pass_seconds: tuple[float, ...]
    pass_read_bytes: tuple[int, ...]
    device_bytes_peak: int | None
    weight_bytes: int
    num_refused: tuple[int, ...] = ()


def generate(
    opened: OpenedModel,
    prompts: Sequence[str],
    sampling: Sampling,
    notify: Callable[[str], None] = lambda text: None,
) -> GeneratedTexts:
    """The texts that follow the prompts, by a model as it stands.

    The model sees as many of a text's last tokens as a training sample has. Every layer comes to
    the device once for a token of all texts. Patterns of sparse weights stay there where the device
    has room for them beside keys and values, which changes no bit.

    Args:
        opened: the model.
        prompts: may be empty texts.
        sampling: how to choose.
        notify: told how far it is.

    Raises:
        OpenwaferError: ``generation-memory``, ``model-no-text``, ``model-no-logits``,
            ``prompt-constraint``.
    """
    require_writer(opened.model)
    tokenizer = opened.tokenizer
    end = tokenizer.end_of_text_id
    begins = [tokenizer.encode(prompt) or [end] for prompt in prompts]
    _require_prompts(prompts, sampling.constraint)
    writing = Writing(begins, sampling, {end, *_own_ends(opened.model)}, tokenizer.decode)
    seconds: list[float] = []
    read_bytes: list[int] = []
    execution = opened.execution
    execution.flush()
    execution.device.reset_peak()
    with evaluating(opened.model), multiplying_few_tokens(opened.model) as sparse:
        reading = Reading(opened, sparse)
        while tokens := writing.tokens:
            start, read = time.perf_counter(), execution.store.traffic.read_bytes
            writing.add(reading.next_logits(tokens, sampling.max_new_tokens))
            seconds.append(time.perf_counter() - start)
            read_bytes.append(execution.store.traffic.read_bytes - read)
            num_tokens = sum(map(len, writing.written))
            notify(f"writing: {num_tokens} tokens, {num_tokens / sum(seconds):.1f} a second")
    return GeneratedTexts(
        step=opened.steps_done,
        texts=tuple(sampling.cut(tokenizer.decode(written)) for written in writing.written),
        pass_seconds=tuple(seconds),
        pass_read_bytes=tuple(read_bytes),
        device_bytes_peak=execution.device.peak_bytes,
        weight_bytes=sum(
            layout.part_bytes(Part.WEIGHTS) for layout in execution.store.layouts.values()
        ),
        num_refused=writing.num_refused,
    )


def _require_prompts(prompts: Sequence[str], constraint: Constraint | None) -> None:
    """Raise ``prompt-constraint`` for a prompt that breaks the constraint already."""
    for prompt in prompts:
        if constraint is not None and not constraint(prompt):
            raise error(
                "prompt-constraint",
                f"no text that begins with {prompt!r:.60} meets the constraint",
                help="correct the prompt, or leave the constraint out",
            )


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context in which a model does not train."""
    model.eval()
    try:
        yield
    finally:
        model.train()


class Reading:
    """Passes texts through a model, each with the keys and values of its tokens so far.

    Args:
        opened: the model.
        sparse: the weights that keep their patterns from token to token, if there is room.
    """

    def __init__(self, opened: OpenedModel, sparse: Sequence[FewTokens]) -> None:
        self._opened = opened
        self._sparse = sparse
        self._window = opened.config.batch.sequence_length
        self._pasts: dict[int, transformers.Cache | None] = {}
        # The tokens whose keys and values a past holds.
        self._read: dict[int, Sequence[int]] = {}
        self._most_texts: int | None = None

    def next_logits(
        self, tokens: Mapping[int, Sequence[int]], num_new: int
    ) -> dict[int, torch.Tensor]:
        """Logits of the next token, (vocabulary,), of the first texts, as many as have room.

        Args:
            tokens: so far, of each text under way, by its index.
            num_new: most tokens that a text will have beside its prompt.

        Raises:
            OpenwaferError: ``generation-memory``.
        """
        found: dict[int, torch.Tensor] = {}
        self._let_go(set(self._pasts) - set(tokens))
        for group in self._groups(dict(islice(tokens.items(), self._most_texts))):
            forwards = [partial(self._forward, index, tokens[index]) for index in group]
            # A second run would find the keys and values of the first.
            logits = self._opened.execution.evaluate(forwards, may_repeat=False)
            found |= zip(group, logits, strict=True)
            if self._most_texts is None:
                self._most_texts = self._texts_with_room(tokens, num_new)
                self._let_go(list(tokens)[self._most_texts :])
            if len(found) >= self._most_texts:
                break
        return found

    def _let_go(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._pasts.pop(index, None)
            self._read.pop(index, None)

    def _groups(self, tokens: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
        """Texts that pass together: with no more tokens than a training step, which is planned."""
        batch = self._opened.config.batch
        group: list[int] = []
        num_left = batch.size * batch.sequence_length
        for index, so_far in tokens.items():
            past = self._past(index, so_far)
            num_new = len(so_far) - (0 if past is None else past.get_seq_length())
            num_new = min(num_new, self._window)
            if group and num_new > num_left:
                yield group
                group, num_left = [], batch.size * batch.sequence_length
            group.append(index)
            num_left -= num_new
        yield group

    def _texts_with_room(self, tokens: Mapping[int, Sequence[int]], num_new: int) -> int:
        """How many texts may be under way at a time, by the keys and values of the first ones."""
        filled = [past for past in self._pasts.values() if past and past.get_seq_length()]
        token_bytes = max((kept_bytes(past) // past.get_seq_length() for past in filled), default=0)
        most_tokens = min(max(map(len, tokens.values())) + num_new, self._window)
        text_bytes = token_bytes * most_tokens
        cap_bytes = self._opened.room_bytes
        # Of a device without a cap, the host's memory is what there is to know.
        room_bytes = (
            max(psutil.virtual_memory().available // FREE_PARTS, text_bytes)
            if cap_bytes is None
            else cap_bytes
        )
        if text_bytes > room_bytes:
            raise error(
                "generation-memory",
                f"keys and values of a text will take {text_bytes:,} bytes, and the device has "
                f"{max(room_bytes, 0):,} bytes beside the weights",
                help="write shorter texts, or raise device_memory",
            )
        most_texts = room_bytes // text_bytes if text_bytes else len(tokens)
        needed = min(most_texts, len(tokens)) * text_bytes
        self._keep_patterns(None if cap_bytes is None else cap_bytes - needed)
        return most_texts

    def _keep_patterns(self, room_bytes: int | None) -> None:
        """Keep the patterns of all sparse weights if they fit, from the next pass on."""
        free_bytes = psutil.virtual_memory().available // FREE_PARTS
        most_bytes = free_bytes if room_bytes is None else min(free_bytes, room_bytes)
        has_room = sum(weight.kept_bytes for weight in self._sparse) <= most_bytes
        for weight in self._sparse:
            weight.keeps_pattern = has_room

    def _past(self, index: int, tokens: Sequence[int]) -> transformers.Cache | None:
        """Keys and values of tokens that a text begins with, without its last one."""
        past, read = self._pasts.get(index), self._read.get(index, ())
        if index not in self._pasts:
            past = self._pasts[index] = new_key_values(self._opened.model)
        if past is None:
            return None
        pairs = enumerate(zip(read, tokens[:-1], strict=False))
        num_same = next(
            (at for at, (was, now) in pairs if was != now), min(len(read), len(tokens) - 1)
        )
        if num_same < len(read):
            # Tokens have been taken back.
            if not shorten(past, num_same):
                past, num_same = new_key_values(self._opened.model), 0
            self._pasts[index], self._read[index] = past, tokens[:num_same]
        return past

    def _forward(self, index: int, tokens: Sequence[int]) -> torch.Tensor:
        if len(tokens) > self._window:
            # All positions move with the window, so that nothing kept is of use.
            self._pasts[index] = None
        past = self._past(index, tokens)
        num_past = 0 if past is None else past.get_seq_length()
        device = self._opened.execution.device.torch_device
        input_ids = torch.tensor([tokens[-self._window :][num_past:]], device=device)
        if past is None:
            output = self._opened.model(input_ids=input_ids)
        else:
            output = forward_from(self._opened.model, input_ids, past)
            self._read[index] = tokens
            if past.get_seq_length() != len(tokens):
                # The model takes a cache and fills none.
                self._pasts[index] = None
        # Without those of the other tokens.
        return logits_of(output)[0, -1].clone()


def _own_ends(model: torch.nn.Module) -> tuple[int, ...]:
    """Tokens that end a text by the settings of a model of the transformers library."""
    if not (is_of_library(model) and model.can_generate()):
        return ()
    ends = model.generation_config.eos_token_id
    return (ends,) if isinstance(ends, int) else tuple(ends or ())


def logits_of(output: object) -> torch.Tensor:
    """The logits in what forward returned; raises ``model-no-logits`` where there are none."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, torch.Tensor):
        return found
    raise error(
        "model-no-logits",
        f"forward returned {type(output).__name__} without logits, so that the model cannot write",
        help='return an object or mapping with "logits" of shape (batch, tokens, vocabulary)',
    )


def require_held_out(config: RunConfig) -> None:
    """Raise ``no-such-split`` where a run would evaluate and keeps no documents for it."""
    if config.evaluate is not None and config.data.validation_share == 0:
        raise error(
            "no-such-split",
            "data.validation_share is 0, and evaluate needs held-out documents",
            help="raise data.validation_share, or leave evaluate out",
        )
