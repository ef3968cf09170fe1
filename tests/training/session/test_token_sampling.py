"""How the next token is chosen."""

from collections.abc import Callable, Sequence

import pytest
import torch

from openwafer.training.session.writing import Sampling, Writing, choose_token

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def drawn(sampling: Sampling, num: int = 400) -> torch.Tensor:
    """How often each token is chosen."""
    generator = torch.Generator().manual_seed(0)
    tokens = [choose_token(LOGITS, sampling, generator) for _ in range(num)]
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS))


def written_by(
    logits_of: Callable[[list[int]], torch.Tensor], prompt: list[int], sampling: Sampling
) -> list[int]:
    """The tokens that follow one prompt."""
    writing = Writing([prompt], sampling)
    while tokens := writing.tokens:
        writing.add({0: logits_of(tokens[0])})
    return writing.written[0]


def successor(tokens: list[int]) -> torch.Tensor:
    """Logits by which the next number follows."""
    return torch.nn.functional.one_hot(torch.tensor(tokens[-1] + 1), 11)


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert drawn(Sampling(temperature=0.0)).tolist() == [0, 400, 0, 0]


def test_a_temperature_next_to_zero_takes_the_likeliest_token() -> None:
    assert drawn(Sampling(temperature=1e-320)).tolist() == [0, 400, 0, 0]


def test_draws_follow_the_probabilities_at_a_temperature() -> None:
    shares = drawn(Sampling(temperature=2.0), 4000) / 4000
    assert torch.allclose(shares, (LOGITS / 2).softmax(0), atol=0.03)


def test_top_k_leaves_the_k_likeliest_tokens() -> None:
    assert (drawn(Sampling(temperature=5.0, top_k=2)) > 0).tolist() == [False, True, True, False]


def test_top_k_beyond_the_vocabulary_leaves_all_tokens() -> None:
    assert (drawn(Sampling(temperature=5.0, top_k=99)) > 0).all()


@pytest.mark.parametrize(("top_p", "kept"), [(0.1, 1), (0.7, 2), (0.95, 3), (1.0, 4)])
def test_top_p_leaves_the_fewest_tokens_that_reach_it(top_p: float, kept: int) -> None:
    # Probabilities of the falling logits 3, 2, 1, -1: 0.66, 0.24, 0.09, 0.01.
    found = drawn(Sampling(temperature=1.0, top_p=top_p), 2000)
    assert int((found > 0).sum()) == kept


def test_the_same_seed_writes_the_same_tokens() -> None:
    def written(seed: int) -> list[int]:
        return written_by(lambda tokens: torch.zeros(50), [1], Sampling(9, seed=seed))

    assert written(3) == written(3) != written(4)


def test_each_token_is_chosen_after_all_before_it() -> None:
    assert written_by(successor, [2, 4], Sampling(3, temperature=0.0)) == [5, 6, 7]


def test_each_text_ends_at_a_token_that_ends_it_or_when_it_is_long_enough() -> None:
    writing = Writing([[2], [7], [8]], Sampling(3, temperature=0.0), ends=[4, 9])
    while tokens := writing.tokens:
        writing.add({index: successor(so_far) for index, so_far in tokens.items()})
    assert writing.written == [[3], [8], []]


def test_a_text_ends_with_the_token_that_completes_a_stop() -> None:
    def digits(tokens: Sequence[int]) -> str:
        return "".join(map(str, tokens))

    sampling = Sampling(9, temperature=0.0, stops=("78", "34"))
    writing = Writing([[2], [5]], sampling, decode=digits)
    while tokens := writing.tokens:
        writing.add({index: successor(so_far) for index, so_far in tokens.items()})
    assert [digits(one) for one in writing.written] == ["34", "678"]
    assert [sampling.cut(digits(one)) for one in writing.written] == ["", "6"]


def test_what_a_text_draws_does_not_depend_on_the_others() -> None:
    def written(num_prompts: int) -> list[list[int]]:
        writing = Writing([[1]] * num_prompts, Sampling(9))
        while tokens := writing.tokens:
            writing.add(dict.fromkeys(tokens, torch.zeros(50)))
        return writing.written

    alone, among_three = written(1), written(3)
    assert among_three[0] == alone[0]
    assert among_three[0] != among_three[1] != among_three[2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected at least 1, found 0"),
        ({"temperature": -1.0}, "temperature: expected at least 0, found -1.0"),
        ({"top_k": 0}, "top_k: expected at least 1, found 0"),
        ({"top_p": 0.0}, "top_p: expected above 0 and at most 1, found 0.0"),
        ({"stops": ("\n", "")}, "stops: expected texts that are not empty"),
        ({"stops": "END"}, "stops: expected texts that are not empty, in a tuple, found END"),
    ],
)
def test_a_sampling_that_cannot_work_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**values)  # type: ignore[arg-type]
