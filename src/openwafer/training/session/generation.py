"""Writes text with a model, one token after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import error
from openwafer.training.session.forward import require_writer
from openwafer.training.session.opened_run import OpenedRun
from openwafer.training.session.seeding import generation_seed

LogitsOf = Callable[[Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: most tokens written; the end of text ends earlier.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: chooses among so many likeliest tokens; ``None`` among all.
        top_p: chooses among the fewest tokens whose probabilities add up to so much.
        seed: of the draws.
    """

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, is_right, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if not is_right:
                raise InvalidFieldError(name, f"expected {wanted}, found {getattr(self, name)}")


def sample_tokens(logits_of: LogitsOf, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
    """The tokens that follow a prompt.

    Args:
        logits_of: logits of the next token, (vocabulary,), after the tokens so far.
        prompt: at least one token.
        sampling: how to choose.
    """
    generator = torch.Generator().manual_seed(generation_seed(sampling.seed))
    tokens = list(prompt)
    for _ in range(sampling.max_new_tokens):
        token = choose_token(logits_of(tokens), sampling, generator)
        tokens.append(token)
        yield token


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


def generate(run: OpenedRun, prompt: str, sampling: Sampling) -> str:
    """The text that follows a prompt, by the run's model as it stands.

    The model sees as many of the last tokens as a training sample has.
    """
    require_writer(run.model)
    tokenizer = run.dataset.tokenizer
    end = tokenizer.end_of_text_id
    written: list[int] = []
    run.execution.flush()
    run.model.eval()
    try:
        for token in sample_tokens(
            lambda tokens: _next_logits(run, tokens), tokenizer.encode(prompt) or [end], sampling
        ):
            if token == end:
                break
            written.append(token)
    finally:
        run.model.train()
    return tokenizer.decode(written)


def _next_logits(run: OpenedRun, tokens: Sequence[int]) -> torch.Tensor:
    window = tokens[-run.config.batch.sequence_length :]
    device = run.execution.device.torch_device
    input_ids = torch.tensor([window], device=device)

    def forward() -> torch.Tensor:
        return _logits_of(run.model(input_ids=input_ids))[0, -1]

    return run.execution.evaluate(forward)


def _logits_of(output: object) -> torch.Tensor:
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, torch.Tensor):
        return found
    raise error(
        "model-no-logits",
        f"forward returned {type(output).__name__} without logits, so that the model cannot write",
        help='return an object or mapping with "logits" of shape (batch, tokens, vocabulary)',
    )
