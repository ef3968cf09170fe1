"""Models of the transformers library that write layers' inputs in place stream as planned."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from tests.tables import case
from tests.training.stream.own_loops import PLAINLY, Way, differing, run_loop

SOUND = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "apply_spec_augment": True,
    "layerdrop": 0.0,
    "mask_time_prob": 0.2,
    "mask_time_length": 2,
    "mask_feature_prob": 0.2,
    "mask_feature_length": 2,
}
TEXT = {"vocab_size": 40, "emb_dim": 16, "n_layers": 3, "n_heads": 2, "max_position_embeddings": 32}
PLANNED = Way(budget="4MiB")
SQUEEZED = SOUND | {"squeeze_factor": 2}


class MeanSquare(nn.Module):
    """A loss of a model without a head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: Tensor) -> Tensor:
        loss: Tensor = self.inner(batch)[0].square().mean()
        return loss


def sound(model: nn.Module, step: int) -> Tensor:
    torch.manual_seed(step)
    loss: Tensor = model(torch.randn(2, 600))
    loss.backward()
    return loss


def text(model: nn.Module, step: int) -> Tensor:
    loss: Tensor = model(
        torch.randint(5, 40, (2, 8), generator=torch.Generator().manual_seed(step))
    )
    loss.backward()
    return loss


def built(kind: str, config: dict[str, Any]) -> nn.Module:
    model = getattr(hf, f"{kind}Model")(getattr(hf, f"{kind}Config")(**config))
    return MeanSquare(model.train())


@pytest.mark.parametrize(
    ("kind", "config", "step"),
    [
        case("Hubert", SOUND, sound, by_default=False),
        case("UniSpeech", SOUND, sound, by_default=False),
        case("Wav2Vec2", SOUND, sound, by_default=False),
        case("Wav2Vec2Conformer", SOUND, sound, by_default=False),
        case("Data2VecAudio", SOUND | {"conv_pos_kernel_size": 3}, sound, by_default=False),
        case("SEW", SQUEEZED, sound, by_default=False),
        case("SEWD", SQUEEZED | {"share_att_key": False}, sound, by_default=False),
        case("XLM", TEXT, text, by_default=False),
        case("Flaubert", TEXT, text, by_default=False),
    ],
)
def test_parameters_are_those_of_the_plain_loop(
    kind: str,
    config: dict[str, Any],
    step: Callable[[nn.Module, int], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind == "Hubert":
        # A mask written over a layer's output moves the place where its backward is met.
        monkeypatch.delenv("OPENWAFER_CHECK_SCHEDULE", raising=False)

    build = partial(built, kind, config)
    plain, streamed = (run_loop(build, way, step) for way in (PLAINLY, PLANNED))
    assert differing(streamed, plain) == []


def test_a_step_that_writes_masks_over_outputs_of_layers_is_that_of_the_plain_loop() -> None:
    build = partial(built, "XLM", TEXT | {"n_layers": 1})
    plain, streamed = (run_loop(build, way, text, num_steps=1) for way in (PLAINLY, PLANNED))
    assert differing(streamed, plain) == []
