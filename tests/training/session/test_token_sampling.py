"""How the next token is chosen."""

import pytest
import torch

from openwafer.training.session.generation import Sampling, choose_token, sample_tokens

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def drawn(sampling: Sampling, num: int = 400) -> torch.Tensor:
    """How often each token is chosen."""
    generator = torch.Generator().manual_seed(0)
    tokens = [choose_token(LOGITS, sampling, generator) for _ in range(num)]
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS))


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
        return list(sample_tokens(lambda tokens: torch.zeros(50), [1], Sampling(9, seed=seed)))

    assert written(3) == written(3) != written(4)


def test_each_token_is_chosen_after_all_before_it() -> None:
    def successor(tokens: object) -> torch.Tensor:
        assert isinstance(tokens, list)
        return torch.nn.functional.one_hot(torch.tensor(tokens[-1] + 1), 10)

    assert list(sample_tokens(successor, [2, 4], Sampling(3, temperature=0.0))) == [5, 6, 7]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected at least 1, found 0"),
        ({"temperature": -1.0}, "temperature: expected at least 0, found -1.0"),
        ({"top_k": 0}, "top_k: expected at least 1, found 0"),
        ({"top_p": 0.0}, "top_p: expected above 0 and at most 1, found 0.0"),
    ],
)
def test_a_sampling_that_cannot_work_is_refused(
    values: dict[str, float | int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**values)  # type: ignore[arg-type]
