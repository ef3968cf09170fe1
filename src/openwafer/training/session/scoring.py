"""How likely texts are, by the model of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from openwafer.diagnostics import error
from openwafer.training.session.forward import require_writer
from openwafer.training.session.opened_model import OpenedModel, evaluating, logits_of

Continuation = tuple[Sequence[int], Sequence[int]]
"""Tokens to begin with, at least one, and those that follow, at least one."""


@dataclass(frozen=True)
class Score:
    """Of a continuation.

    Attributes:
        log_likelihood: sum over its tokens, natural.
        is_greedy: whether each of its tokens is the likeliest.
    """

    log_likelihood: float
    is_greedy: bool


def score(opened: OpenedModel, continuations: Sequence[Continuation]) -> list[Score]:
    """The score of each continuation, behind as many of the tokens before it as the model sees.

    A pass has no more tokens than a training step, which the device is planned for.

    Raises:
        OpenwaferError: ``model-no-text``, ``model-no-logits``, ``score-length``, ``score-token``.
    """
    require_writer(opened.model)
    window = opened.config.batch.sequence_length
    for number, (before, behind) in enumerate(continuations):
        if not before or not 0 < len(behind) <= window:
            raise error(
                "score-length",
                f"continuation {number} has {len(behind)} tokens behind {len(before)}",
                help=f"give 1 to {window} tokens (batch.sequence_length), behind at least one",
            )
    _require_tokens(opened.tokenizer.vocab_size, continuations)
    opened.execution.flush()
    found: list[Score] = []
    with evaluating(opened.model):
        for group in _groups(opened, continuations):
            forwards = [partial(_forward, opened, *one) for one in group]
            sums = opened.execution.evaluate(forwards)
            found += [Score(float(total), bool(greedy)) for total, greedy in sums]
    return found


def _require_tokens(vocab_size: int, continuations: Sequence[Continuation]) -> None:
    for number, parts in enumerate(continuations):
        for token in chain(*parts):
            if not 0 <= token < vocab_size:
                raise error(
                    "score-token",
                    f"continuation {number} has the token {token}",
                    help=f"encode by the run's tokenizer, whose tokens are 0 to {vocab_size - 1}",
                )


def _groups(
    opened: OpenedModel, continuations: Sequence[Continuation]
) -> Iterator[list[Continuation]]:
    size = opened.config.batch.samples_of_piece
    for start in range(0, len(continuations), size):
        yield list(continuations[start : start + size])


def _forward(opened: OpenedModel, before: Sequence[int], behind: Sequence[int]) -> torch.Tensor:
    """The log-likelihood of one continuation, and 1 where it is greedy, (2,)."""
    tokens = [*before, *behind][-opened.config.batch.sequence_length - 1 :]
    device = opened.execution.device.torch_device
    ids = torch.tensor(tokens, device=device)
    logits_TV = logits_of(opened.model(input_ids=ids[None, :-1]))[0, -len(behind) :].float()
    target_T = ids[-len(behind) :]
    total = logits_TV.log_softmax(1).gather(1, target_T[:, None]).sum()
    return torch.stack((total, (logits_TV.argmax(1) == target_T).all().float()))
