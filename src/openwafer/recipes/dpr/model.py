"""Dense passage retrieval (arXiv 2004.04906) on samples of a question and its passage.

Shapes: B batch, T tokens, D hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from openwafer.diagnostics import counted, error
from openwafer.recipes.dpo.model import shown
from openwafer.training.labels import IGNORED_LABEL

_LEAST_QUESTION: Final = 2
"""Tokens: the one that stands for all behind it, and one of text."""
_LEAST_PASSAGE: Final = _LEAST_QUESTION + 1
"""With the end of text."""


@dataclass(frozen=True)
class RetrievalOutput:
    """What a batch of questions gives.

    Attributes:
        loss: mean over the questions that have their passage.
        recall: share of the questions whose own passage is nearest, of all in the batch.
    """

    loss: Tensor
    recall: Tensor


class Retriever(nn.Module):
    """An encoder of questions and one of passages; other passages of a batch are the negatives.

    Args:
        config: of both encoders, as ``DPRConfig`` takes it.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        described = transformers.DPRConfig(**config)
        self.questions = transformers.DPRQuestionEncoder(described)
        self.passages = transformers.DPRContextEncoder(described)
        # As both of the literature begin with the same pretrained weights.
        encoder = self.questions.question_encoder.state_dict()
        self.passages.ctx_encoder.load_state_dict(encoder)

    def check_samples(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor,
        row_ends: Tensor | None,
    ) -> None:
        """See that a micro-batch has questions and their passages.

        Args:
            input_ids: as of :meth:`forward`.
            labels: as of :meth:`forward`.
            attention_mask: as of :meth:`forward`.
            row_ends: as of :class:`~openwafer.training.data.Batch`.

        Raises:
            OpenwaferError: ``empty-question`` or ``empty-passage`` for a row that lacks one, and
                ``no-questions`` where no sample has both.
        """
        is_passage_BT = labels != IGNORED_LABEL
        if row_ends is not None:
            begins_B, ends_B = row_ends.unbind(1)
            num_question_B = ((attention_mask == 1) & ~is_passage_BT).sum(1)
            _require("question", num_question_B, _LEAST_QUESTION, begins_B, input_ids)
            is_row_B = begins_B & ends_B
            _require("passage", is_passage_BT.sum(1), _LEAST_PASSAGE, is_row_B, input_ids)
        if not _are_whole(is_passage_BT).any():
            raise error(
                "no-questions",
                f"none of {counted(len(labels), 'sample')} in a micro-batch holds a question and a "
                f"passage: {int(is_passage_BT[:, 0].sum())} begin with a passage",
                help="give every row a question that is not empty, or raise batch.sequence_length",
            )

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> RetrievalOutput:
        """Compare every question of a batch with every passage.

        Args:
            input_ids: a question, then its passage, (B, T).
            labels: -100 but on the passage, (B, T).
            attention_mask: 0 on padding, (B, T).
        """
        is_passage_BT = labels != IGNORED_LABEL
        is_question_BT = (attention_mask == 1) & ~is_passage_BT
        question_BD = self.questions(input_ids, is_question_BT.long()).pooler_output
        passage_BD = self.passages(*_to_the_left(input_ids, is_passage_BT)).pooler_output
        scores_BB = question_BD @ passage_BD.T
        is_whole_B = _are_whole(is_passage_BT)
        scores_BB = scores_BB.masked_fill(~is_whole_B, torch.finfo(scores_BB.dtype).min)
        own_B = torch.arange(len(scores_BB), device=scores_BB.device)
        is_found_B = (scores_BB.argmax(1) == own_B) & is_whole_B
        loss = F.cross_entropy(scores_BB, own_B.where(is_whole_B, IGNORED_LABEL))
        return RetrievalOutput(loss, is_found_B.sum() / is_whole_B.sum())


def _require(what: str, found_B: Tensor, least: int, is_asked_B: Tensor, input_ids: Tensor) -> None:
    """Refuse a row whose question or passage has fewer tokens than the least."""
    for row in (is_asked_B & (found_B < least)).nonzero().flatten().tolist():
        raise error(
            f"empty-{what}",
            f"the {what} of a row has {counted(int(found_B[row]), 'token')}, expected at least "
            f"{least}: sample {row + 1} of {len(input_ids)} in a micro-batch",
            notes=(f"its tokens are {shown(input_ids[row])}",),
            help=f"give every row a {what} behind <|cls|> that is not empty, or leave the row out",
        )


def _are_whole(is_passage_BT: Tensor) -> Tensor:
    """Which rows are no piece of a longer one, which lacks the question or the passage, (B,)."""
    return ~is_passage_BT[:, 0] & is_passage_BT.any(1)


def _to_the_left(input_ids: Tensor, is_kept_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Move one span of each row to its start; returns the tokens and their mask, both (B, T)."""
    place_BT = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    from_BT = (place_BT + is_kept_BT.int().argmax(1, keepdim=True)) % input_ids.shape[1]
    return input_ids.gather(1, from_BT), (place_BT < is_kept_BT.sum(1, keepdim=True)).long()
