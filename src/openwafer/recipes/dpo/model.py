"""Direct preference optimization (arXiv 2305.18290) on samples that hold both answers.

Shapes: B batch, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openwafer.diagnostics import counted, error
from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.models import CheckpointFolder, build

SHOWN_TOKENS: Final = 12


@dataclass(frozen=True)
class PreferenceOutput:
    """What a batch of pairs gives.

    Attributes:
        loss: mean over the pairs that are whole.
        preferred: share of the pairs whose chosen answer has the higher reward.
    """

    loss: Tensor
    preferred: Tensor


class Preferences(nn.Module):
    """A causal language model that learns which of two answers is chosen, beside itself as it was.

    Args:
        policy: folder of the model, as the transformers library reads it.
        end_of_text: id of the token behind each of the two answers.
        beta: how dear it is to move away from the reference.
    """

    def __init__(self, policy: str, end_of_text: int, beta: float = 0.1) -> None:
        super().__init__()
        self.policy = build(CheckpointFolder(path=Path(policy)), seed=0)
        self.reference = deepcopy(self.policy).requires_grad_(False)
        self.end_of_text, self.beta = end_of_text, beta

    def check_samples(
        self, input_ids: Tensor, labels: Tensor, row_ends: Tensor | None, **_: Tensor
    ) -> None:
        """See that a micro-batch holds pairs.

        Args:
            input_ids: as of :meth:`forward`.
            labels: as of :meth:`forward`.
            row_ends: as of :class:`~openwafer.training.data.Batch`.

        Raises:
            OpenwaferError: ``pair-answers`` for a whole row that is no prompt with two answers, and
                where no pair is whole.
        """
        answers = Answers.of(input_ids, labels, self.end_of_text)
        is_row_B = (
            torch.zeros(len(labels), dtype=torch.bool) if row_ends is None else row_ends.all(1)
        )
        for row in (is_row_B & ~answers.is_whole).nonzero().flatten().tolist():
            prompt = int((labels[row] != IGNORED_LABEL).int().argmax())
            raise error(
                "pair-answers",
                f"a row has a prompt of {counted(prompt, 'token')} and "
                f"{counted(int(answers.num_ends[row]), 'answer')}, expected a prompt and 2 "
                f"answers: sample {row + 1} of {len(labels)} in a micro-batch",
                notes=(f"its tokens are {shown(input_ids[row])}",),
                help="write the chosen answer, the end of text and the rejected one in its row",
            )
        if not answers.is_whole.any():
            raise error(
                "pair-answers",
                f"none of {counted(len(labels), 'sample')} in a micro-batch holds a prompt and two "
                "whole answers",
                notes=(f"tokens of the first are {shown(input_ids[0])}",),
                help="give every row a prompt and two answers, or raise batch.sequence_length",
            )

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor
    ) -> PreferenceOutput:
        """Compare the answers of each pair; rewards are sums over an answer's tokens.

        Args:
            input_ids: a prompt, the chosen answer and the rejected one, (B, T). Both answers see
                the prompt, and none sees the other.
            labels: -100 but on the answers, (B, T).
            attention_mask: 0 on padding, (B, T).
        """
        answers = Answers.of(input_ids, labels, self.end_of_text)
        inputs = answers.inputs(attention_mask)
        with torch.no_grad():
            reference_BT = answers.log_probs(self.reference(**inputs).logits)
        reward_BT = self.beta * (answers.log_probs(self.policy(**inputs).logits) - reference_BT)
        chosen_B = (reward_BT * answers.is_chosen).sum(1)
        margin_B = chosen_B - (reward_BT * answers.is_rejected).sum(1)
        share_B = answers.is_whole / answers.is_whole.sum()
        loss = -(F.logsigmoid(margin_B) * share_B).sum()
        return PreferenceOutput(loss, ((margin_B > 0) * share_B).sum())


@dataclass(frozen=True)
class Answers:
    """Where the two answers of each row are.

    Attributes:
        input_ids: (B, T).
        is_chosen, is_rejected: whose tokens they are, (B, T).
        num_ends: answers that end there, (B,).
        is_whole: no piece of a longer row, whose answers would be others, (B,).
    """

    input_ids: Tensor
    is_chosen: Tensor
    is_rejected: Tensor
    num_ends: Tensor
    is_whole: Tensor

    @classmethod
    def of(cls, input_ids: Tensor, labels: Tensor, end_of_text: int) -> "Answers":
        """Take rows apart behind the first end of text among their labels."""
        is_answer_BT = labels != IGNORED_LABEL
        ends_BT = (is_answer_BT & (input_ids == end_of_text)).int()
        is_first_BT = ends_BT.cumsum(1) == ends_BT
        num_ends_B = ends_BT.sum(1)
        is_whole_B = ~is_answer_BT[:, 0] & (num_ends_B == 2)
        is_chosen_BT, is_rejected_BT = is_answer_BT & is_first_BT, is_answer_BT & ~is_first_BT
        return cls(input_ids, is_chosen_BT, is_rejected_BT, num_ends_B, is_whole_B)

    def inputs(self, attention_mask: Tensor) -> Mapping[str, Any]:
        """What a causal model takes to read both answers behind one prompt."""
        position_T = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        is_other_BTT = self.is_rejected[:, :, None] & self.is_chosen[:, None]
        is_seen_BTT = (position_T <= position_T[:, None]) & (attention_mask[:, None] == 1)
        hidden = torch.finfo(torch.float32).min
        mask_BTT = torch.where(is_seen_BTT & ~is_other_BTT, 0.0, hidden)
        skipped_BT = self.is_rejected * self.is_chosen.sum(1, keepdim=True)
        return {
            "input_ids": self.input_ids,
            "attention_mask": mask_BTT[:, None],
            "position_ids": position_T - skipped_BT,
            "use_cache": False,
        }

    def log_probs(self, logits_BTV: Tensor) -> Tensor:
        """Log-probability of each token behind those that it sees, (B, T)."""
        before_BT = self._before()
        scores_BTV = logits_BTV.float()
        rows_B1 = torch.arange(len(scores_BTV), device=scores_BTV.device)[:, None]
        found_BT = scores_BTV[rows_B1, before_BT, self.input_ids]
        return found_BT - scores_BTV.logsumexp(2).gather(1, before_BT)

    def _before(self) -> Tensor:
        """Where the token is that each follows: both answers begin behind the prompt."""
        before_BT = torch.arange(-1, self.input_ids.shape[1] - 1, device=self.input_ids.device)
        before_BT = before_BT.clamp(min=0).expand_as(self.input_ids)
        follows_chosen_BT = self.is_rejected & self.is_chosen.roll(1, 1)
        first_B1 = self.is_chosen.int().argmax(1, keepdim=True)
        return torch.where(follows_chosen_BT, (first_B1 - 1).clamp(min=0), before_BT)


def shown(ids: Tensor) -> str:
    """The first tokens of a row, in words."""
    return f"{', '.join(map(str, ids[:SHOWN_TOKENS].tolist()))} ..."
