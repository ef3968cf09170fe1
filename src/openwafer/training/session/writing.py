"""Texts under way: how the next token of each is chosen from what the model expects.

A constraint makes the choice a search. A token that leads to no text that is wanted is refused, and
another one is drawn from the same logits, so that it costs no pass of the model. Where too many are
refused, tokens in front of them are taken back.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.config import InvalidFieldError
from openwafer.training.session.constrained import Constraint
from openwafer.training.session.forward import generation_seed

MOST_DRAWS: Final = 32
"""Of tokens for one place of a text, before tokens in front of it are taken back."""
MOST_DEAD_ENDS: Final = 16
"""In a row, by which a text becomes no longer than it was; then it ends."""
FARTHEST_BACK: Final = 16
"""Tokens that are taken back at once, at most: those of a line."""
LOOK_BACK: Final = 64
"""Tokens that may be taken back in all; logits of so many places are kept."""
CONTEXT: Final = 8
"""Tokens in front by whose text that of one more is found."""
UNFINISHED: Final = "\ufffd"
"""What stands for bytes that are no whole character, or not yet."""
MOST_UNFINISHED: Final = 3
"""Bytes of a character that lacks one, at most."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: most tokens written; the end of text ends earlier.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: chooses among so many likeliest tokens; ``None`` among all.
        top_p: chooses among the fewest tokens whose probabilities add up to so much.
        seed: of the draws.
        constraint: what the text up to each token has to meet, prompt and all; a token by which it
            does not is refused. See :mod:`~openwafer.training.session.constrained`.
        stops: texts at which a text ends, none of them a part of it.
    """

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    constraint: Constraint | None = None
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # One text would be taken letter by letter.
        are_stops = self.stops == (*self.stops,) and all(self.stops)
        for name, is_right, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("stops", are_stops, "texts that are not empty, in a tuple"),
        ):
            if not is_right:
                raise InvalidFieldError(name, f"expected {wanted}, found {getattr(self, name)}")

    def cut(self, text: str) -> str:
        """A text up to the first of the stops in it."""
        for stop in self.stops:
            text = text.partition(stop)[0]
        return text


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


class Decoded:
    """The text of tokens, one token after the other.

    Args:
        decode: the text of tokens.
        tokens: of the text's beginning.

    Attributes:
        text: without the bytes at its end that are no whole character yet.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = [*tokens]
        self._texts = deque([decode(tokens)], maxlen=LOOK_BACK + 1)

    @property
    def text(self) -> str:
        text = self._texts[-1]
        # More than one character lacks is no character, whatever follows.
        return text[:-MOST_UNFINISHED] + text[-MOST_UNFINISHED:].rstrip(UNFINISHED)

    def append(self, token: int) -> None:
        """Add a token."""
        context = self._tokens[-CONTEXT:]
        self._tokens.append(token)
        so_far, before = self._texts[-1], self._decode(context)
        behind = self._decode([*context, token])
        # A decoder may change what it has written, such as a space in front of a full stop; of
        # bytes, one that lacks another may make all those before it unreadable.
        is_longer = behind.startswith(before) and UNFINISHED not in so_far[-1:] + behind
        self._texts.append(
            so_far + behind[len(before) :] if is_longer else self._decode(self._tokens)
        )

    def pop(self) -> None:
        """Take the last token back."""
        self._tokens.pop()
        self._texts.pop()


@dataclass
class _Place:
    """A place in a text for a token: the logits of those that were not refused there."""

    logits: torch.Tensor
    num_draws: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.num_draws == MOST_DRAWS or bool(self.logits.max() == -torch.inf)

    def refuse(self, token: int) -> None:
        self.logits[token] = -torch.inf
        self.num_draws += 1


class Search:
    """Chooses the tokens of one text so that it meets a constraint at each of them.

    Args:
        constraint: that the text has to meet.
        decoded: the prompt.
        choose: a token by logits.

    Attributes:
        num_refused: tokens so far.
    """

    def __init__(
        self, constraint: Constraint, decoded: Decoded, choose: Callable[[torch.Tensor], int]
    ) -> None:
        self._constraint = constraint
        self._decoded = decoded
        self._choose = choose
        self._places: deque[_Place] = deque(maxlen=LOOK_BACK)
        self._most_written = 0
        self._num_dead_ends = 0
        self.num_refused = 0

    def next_token(
        self, written: list[int], logits: torch.Tensor, ends: Collection[int]
    ) -> int | None:
        """The token behind those written, some of which it may take back; ``None`` for no token.

        Args:
            written: tokens so far.
            logits: of the next one, (vocabulary,).
            ends: tokens that end the text, whatever it says.
        """
        if len(written) > self._most_written:
            self._most_written, self._num_dead_ends = len(written), 0
        self._places.append(_Place(logits.cpu().clone()))
        while self._places:
            place = self._places[-1]
            if place.is_exhausted:
                self._go_back(written)
                continue
            token = self._choose(place.logits)
            if token in ends:
                return token
            self._decoded.append(token)
            if self._constraint(self._decoded.text):
                return token
            self._decoded.pop()
            self._refuse(token)
        return None

    def _go_back(self, written: list[int]) -> None:
        """Take back one token, then two, four and so on: a mistake may lie far in front."""
        num_back = min(2**self._num_dead_ends, FARTHEST_BACK, len(self._places) - 1)
        self._num_dead_ends += 1
        if num_back == 0 or self._num_dead_ends > MOST_DEAD_ENDS:
            self._places.clear()
            return
        for _ in range(num_back):
            self._places.pop()
            token = written.pop()
            self._decoded.pop()
        self._refuse(token)

    def _refuse(self, token: int) -> None:
        self._places[-1].refuse(token)
        self.num_refused += 1


class Writing:
    """Texts under way.

    Args:
        prompts: the tokens that each begins with, at least one.
        sampling: how to choose; what a text draws does not depend on the others.
        ends: tokens that end a text, and are no part of it.
        decode: the text of tokens, where the sampling has a constraint or stops.

    Attributes:
        written: the tokens of each text after its prompt.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        ends: Collection[int] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self.written: list[list[int]] = [[] for _ in prompts]
        self._prompts = prompts
        self._sampling = sampling
        self._ends = ends
        self._decode = decode
        self._under_way = set(range(len(prompts)))
        self._choices = [self._choice(index) for index in range(len(prompts))]
        self._searches: list[Search] = []
        if sampling.constraint is not None:
            assert decode is not None
            self._searches = [
                Search(sampling.constraint, Decoded(decode, prompt), choose)
                for prompt, choose in zip(prompts, self._choices, strict=True)
            ]

    def _choice(self, index: int) -> Callable[[torch.Tensor], int]:
        generator = torch.Generator().manual_seed(generation_seed(self._sampling.seed, index))
        return lambda logits: choose_token(logits, self._sampling, generator)

    @property
    def tokens(self) -> dict[int, list[int]]:
        """All tokens so far of each text that has not ended, by the index of its prompt."""
        return {
            index: [*self._prompts[index], *self.written[index]]
            for index in sorted(self._under_way)
        }

    @property
    def num_refused(self) -> tuple[int, ...]:
        """Tokens of each text that a constraint refused; empty without one."""
        return tuple(search.num_refused for search in self._searches)

    def add(self, logits: Mapping[int, torch.Tensor]) -> None:
        """Choose the next token of each text by its logits, (vocabulary,)."""
        for index, scores in logits.items():
            written = self.written[index]
            token = self._next_token(index, scores)
            if token is not None and token not in self._ends:
                written.append(token)
                if len(written) < self._sampling.max_new_tokens and not self._is_stopped(written):
                    continue
            self._under_way.remove(index)

    def _is_stopped(self, written: Sequence[int]) -> bool:
        """Whether one of the stops is in what was written."""
        if not self._sampling.stops:
            return False
        assert self._decode is not None
        text = self._decode(written)
        return self._sampling.cut(text) != text

    def _next_token(self, index: int, logits: torch.Tensor) -> int | None:
        if not self._searches:
            return self._choices[index](logits)
        return self._searches[index].next_token(self.written[index], logits, self._ends)
