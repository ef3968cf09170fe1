"""A model of a run with what executes it: its loss on held-out documents, and texts that it writes.

Of all texts that are written, each gets a token whenever the model's layers pass.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import psutil
import torch
import transformers
from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.training.data import Split, TokenDataset
from openwafer.training.data.tokenizer import Tokenizer
from openwafer.training.models.key_values import forward_from, kept_bytes, new_key_values
from openwafer.training.models.loss import LOSS
from openwafer.training.models.transformers_model import is_of_library
from openwafer.training.session.config import RunConfig
from openwafer.training.session.constrained import Constraint, Lines
from openwafer.training.session.forward import (
    forward_of,
    generation_seed,
    model_inputs,
    require_writer,
)
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
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: most tokens written; the end of text ends earlier.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: chooses among so many likeliest tokens; ``None`` among all.
        top_p: chooses among the fewest tokens whose probabilities add up to so much.
        seed: of the draws.
        constraint: what the text up to each line end has to meet, prompt and all; a line by which
            it does not is drawn again. See :mod:`~openwafer.training.session.constrained`.
    """

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name, is_drawn in (("temperature", self.temperature != 0), ("top_k", self.top_k != 1)):
            if self.constraint is not None and not is_drawn:
                raise InvalidFieldError(
                    name,
                    f"{getattr(self, name)} draws the same line again, and a constraint may "
                    "refuse it",
                )
        for name, is_right, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if not is_right:
                raise InvalidFieldError(name, f"expected {wanted}, found {getattr(self, name)}")


@dataclass(frozen=True)
class GeneratedTexts:
    """What a model wrote.

    Attributes:
        step: training steps behind the model.
        texts: one a prompt, which is not repeated.
        pass_seconds: time of each pass, which gives a token to every text that has not ended; the
            first reads the prompts.
        pass_read_bytes: that each pass read from disk.
        device_bytes_peak: most bytes on the device meanwhile; ``None`` where it does not tell.
        weight_bytes: of all weights.
        num_redrawn: lines of each text that were drawn again.
    """

    step: int
    texts: tuple[str, ...]
    pass_seconds: tuple[float, ...]
    pass_read_bytes: tuple[int, ...]
    device_bytes_peak: int | None
    weight_bytes: int
    num_redrawn: tuple[int, ...] = ()


class Writing:
    """Texts under way.

    Args:
        prompts: the tokens that each begins with, at least one.
        sampling: how to choose; what a text draws does not depend on the others.
        ends: tokens that end a text, and are no part of it.
        lines: of each text, where the sampling has a constraint.

    Attributes:
        written: the tokens of each text after its prompt.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        ends: Collection[int] = (),
        lines: Sequence[Lines] = (),
    ) -> None:
        self.written: list[list[int]] = [[] for _ in prompts]
        self._prompts = prompts
        self._sampling = sampling
        self._ends = ends
        self._under_way = set(range(len(prompts)))
        self._generators = [
            torch.Generator().manual_seed(generation_seed(sampling.seed, index))
            for index in range(len(prompts))
        ]
        self._lines = lines

    @property
    def tokens(self) -> dict[int, list[int]]:
        """All tokens so far of each text that has not ended, by the index of its prompt."""
        return {
            index: [*self._prompts[index], *self.written[index]]
            for index in sorted(self._under_way)
        }

    def add(self, logits: Mapping[int, torch.Tensor]) -> None:
        """Choose the next token of each text by its logits, (vocabulary,)."""
        for index, scores in logits.items():
            token = choose_token(scores, self._sampling, self._generators[index])
            written = self.written[index]
            is_at_end = token in self._ends
            if not is_at_end:
                written.append(token)
            if self._lines:
                lines = self._lines[index]
                del written[lines.num_kept(written) :]
                is_at_end = is_at_end or lines.is_stuck
            if is_at_end or len(written) == self._sampling.max_new_tokens:
                self._under_way.remove(index)


def choose_token(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token by its logits, (vocabulary,)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    # Differences from the highest, so that no temperature, however low, makes an infinity of it.
    logits = (logits.double() - logits.max()).cpu() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.numel():
        lowest_kept = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < lowest_kept, -torch.inf)
    probabilities = logits.softmax(0)
    if sampling.top_p < 1:
        falling, order = probabilities.sort(descending=True)
        # The token that reaches top_p is kept, so that there is always one.
        is_beyond = falling.cumsum(0) - falling >= sampling.top_p
        probabilities = probabilities.index_fill(0, order[is_beyond], 0.0)
    return int(torch.multinomial(probabilities, 1, generator=generator))


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
    constraint = sampling.constraint
    lines = [Lines(constraint, tokenizer.decode, begin) for begin in begins if constraint]
    writing = Writing(begins, sampling, {end, *_own_ends(opened.model)}, lines)
    seconds: list[float] = []
    read_bytes: list[int] = []
    execution = opened.execution
    execution.flush()
    execution.device.reset_peak()
    with evaluating(opened.model), multiplying_few_tokens(opened.model) as sparse:
        reading = Reading(opened, len(prompts), sparse)
        while tokens := writing.tokens:
            start, read = time.perf_counter(), execution.store.traffic.read_bytes
            writing.add(reading.next_logits(tokens, sampling.max_new_tokens))
            seconds.append(time.perf_counter() - start)
            read_bytes.append(execution.store.traffic.read_bytes - read)
            num_tokens = sum(map(len, writing.written))
            notify(f"writing: {num_tokens} tokens, {num_tokens / sum(seconds):.1f} a second")
    return GeneratedTexts(
        step=opened.steps_done,
        texts=tuple(tokenizer.decode(written) for written in writing.written),
        pass_seconds=tuple(seconds),
        pass_read_bytes=tuple(read_bytes),
        device_bytes_peak=execution.device.peak_bytes,
        weight_bytes=sum(
            layout.part_bytes(Part.WEIGHTS) for layout in execution.store.layouts.values()
        ),
        num_redrawn=tuple(of_text.num_redrawn for of_text in lines),
    )


def _require_prompts(prompts: Sequence[str], constraint: Constraint | None) -> None:
    """Raise ``prompt-constraint`` for a prompt whose whole lines break the constraint already."""
    for prompt in prompts:
        whole = prompt[: prompt.rfind("\n") + 1]
        if constraint is not None and whole and not constraint(whole):
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
        num_texts: texts.
        sparse: the weights that keep their patterns from token to token, if there is room.
    """

    def __init__(self, opened: OpenedModel, num_texts: int, sparse: Sequence[FewTokens]) -> None:
        self._opened = opened
        self._sparse = sparse
        self._window = opened.config.batch.sequence_length
        self._pasts = [new_key_values(opened.model) for _ in range(num_texts)]
        self._has_room = False

    def next_logits(
        self, tokens: Mapping[int, Sequence[int]], num_new: int
    ) -> dict[int, torch.Tensor]:
        """Logits of the next token of each text, (vocabulary,), after the tokens so far.

        Args:
            tokens: of each text under way, by its index.
            num_new: most tokens that a text will have beside its prompt.

        Raises:
            OpenwaferError: ``generation-memory``.
        """
        found: dict[int, torch.Tensor] = {}
        for group in self._groups(tokens):
            forwards = [partial(self._forward, index, tokens[index]) for index in group]
            # A second run would find the keys and values of the first.
            logits = self._opened.execution.evaluate(forwards, may_repeat=False)
            found |= zip(group, logits, strict=True)
            if not self._has_room:
                self._require_room(num_new)
        self._has_room = True
        return found

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

    def _require_room(self, num_new: int) -> None:
        """Refuse texts whose keys and values outgrow the device; those of some tell of all."""
        room_bytes = self._opened.room_bytes
        needed = 0
        filled = [past for past in self._pasts if past is not None and past.get_seq_length()]
        for past in filled:
            num_tokens = past.get_seq_length()
            most_tokens = min(num_tokens + num_new, self._window)
            needed += kept_bytes(past) * most_tokens // num_tokens
        needed = needed * len(self._pasts) // max(len(filled), 1)
        if room_bytes is not None and needed > room_bytes:
            raise error(
                "generation-memory",
                f"keys and values of {len(self._pasts)} texts will take {needed:,} bytes, and the "
                f"device has {max(room_bytes, 0):,} bytes beside the weights",
                help="write fewer texts at a time, or shorter ones, or raise device_memory",
            )
        self._keep_patterns(None if room_bytes is None else room_bytes - needed)

    def _keep_patterns(self, room_bytes: int | None) -> None:
        """Keep the patterns of all sparse weights if they fit, from the next pass on."""
        free_bytes = psutil.virtual_memory().available // FREE_PARTS
        most_bytes = free_bytes if room_bytes is None else min(free_bytes, room_bytes)
        has_room = sum(weight.kept_bytes for weight in self._sparse) <= most_bytes
        for weight in self._sparse:
            weight.keeps_pattern = has_room

    def _past(self, index: int, tokens: Sequence[int]) -> transformers.Cache | None:
        """Keys and values of a text; none of tokens that have been taken back."""
        past = self._pasts[index]
        if past is not None and past.get_seq_length() >= len(tokens):
            past = self._pasts[index] = new_key_values(self._opened.model)
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
