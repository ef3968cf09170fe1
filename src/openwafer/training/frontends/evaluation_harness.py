"""A run as a model of lm-eval, whose tasks then evaluate it while its weights stream.

It asks for lm-eval, which ``pip install openwafer[evaluation]`` brings.
"""

from collections.abc import Sequence
from typing import Any, Final

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from openwafer.config import PathLike
from openwafer.diagnostics import error
from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.session import Sampling, Session

DEFAULT_NEW_TOKENS = 256
"""Where a task does not say how many: as the library's own models have it."""
# Of a task's options, and here.
_NAMES: Final = {
    "max_gen_toks": "max_new_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}


class RunModel(TemplateLM):  # type: ignore[misc]
    """``lm_eval.simple_evaluate(model=RunModel("runs/small"), tasks=[...])``.

    Args:
        run: folder of a run.
        overrides: ``a.b=value`` each, such as another ``device_memory``.
        checkpoint: one by its path or the ``best``; ``None`` for the newest saved step.
        trusts_code: as of :class:`Session`.
    """

    def __init__(
        self,
        run: PathLike,
        overrides: Sequence[str] = (),
        *,
        checkpoint: PathLike | None = None,
        trusts_code: bool = False,
    ) -> None:
        super().__init__()
        self._session = Session(run, overrides, trusts_code=trusts_code)
        self._checkpoint = checkpoint
        self._tokenizer = load_tokenizer(self._session.folder.path)
        self.max_length = self._session.config.batch.sequence_length

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text, behind which texts without a context begin."""
        return self._tokenizer.end_of_text_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Token ids of a text; none are added."""
        return self._tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        scores = self._session.score(
            [(before, behind) for _, before, behind in requests], self._checkpoint
        )
        return [(score.log_likelihood, score.is_greedy) for score in scores]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole texts, each in windows of as many tokens as the model sees."""
        windows = [self._windows(request.args[0]) for request in requests]
        scored = iter(
            self._loglikelihood_tokens([(None, *one) for text in windows for one in text])
        )
        return [sum(next(scored)[0] for _ in text) for text in windows]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
        )
        return [make_disjoint_window(window) for window in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """A text behind each prompt, cut before the first of its stop sequences.

        Requests that ask for the same sampling pass the layers side by side.

        Raises:
            OpenwaferError: ``evaluation-sampling``, before any text is written.
        """
        asked = [_sampling(request.args[1]) for request in requests]
        texts = [""] * len(requests)
        for sampling in dict.fromkeys(asked):
            indices = [index for index, one in enumerate(asked) if one == sampling]
            prompts = [requests[index].args[0] for index in indices]
            written = self._session.generate_all(prompts, sampling, self._checkpoint).texts
            for index, text in zip(indices, written, strict=True):
                texts[index] = text
        return texts


def _sampling(options: dict[str, Any]) -> Sampling:
    """What a task asks of a text, by its ``generation_kwargs``, as lm-eval completes them."""
    known = dict(normalize_gen_kwargs(options, DEFAULT_NEW_TOKENS))
    stops, does_sample = known.pop("until"), known.pop("do_sample")
    values: dict[str, Any] = {"temperature": 0.0}
    values |= {ours: known.pop(theirs) for theirs, ours in _NAMES.items() if theirs in known}
    if known:
        raise error(
            "evaluation-sampling",
            f"the task asks for {', '.join(known)}, which does not exist here",
            help="of generation_kwargs, max_gen_toks, until, do_sample, temperature, top_k and "
            "top_p are known",
        )
    if does_sample and values["temperature"] == 0:
        raise error(
            "evaluation-sampling",
            "the task asks for do_sample: true without a temperature, and lm-eval takes 0 "
            "then, which draws nothing",
            help="add temperature: 1.0 to its generation_kwargs, or leave do_sample out",
        )
    return Sampling(**values, stops=tuple(filter(None, stops)))
