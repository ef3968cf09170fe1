"""Plans for other systems count attention as their one kernel, beside a count by hand.

By hand a layer of GPT leaves 34 bytes for each token and feature in 16-bit, two of them masks of
dropout (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, without the scores that a fused
kernel does not leave), a number for each row of scores, and the sums of its two norms.
"""

from dataclasses import replace
from functools import cache
from math import sqrt

import pytest

from openwafer.cli.counted_task import task_of
from openwafer.planning.system_plan import Activations, SystemPlan, TrainingTask, plan_system
from openwafer.planning.systems import find_system
from openwafer.training.methods.step_count import count_layers
from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig
from tests.training.session.test_step_count import RUN

GPT_2 = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
GPT_3 = {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048}
VOCABULARY = 8192
SYSTEMS = [("h200", 1), ("a100", 8)]
CLUSTERS = [("cs2", 192), ("cs3", 64), ("h200", 192), ("a100", 192), ("wse3", 192)]


def run_of(shape: dict[str, int], dropout: float, batch_size: int) -> RunConfig:
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)
    config = {**shape, **drops, "activation_function": "gelu_pytorch_tanh"}
    batch = BatchConfig(batch_size, shape["n_positions"])
    return replace(RUN, model=TransformersModel("gpt2", config=config), batch=batch)


@cache
def gpt_2(dropout: float) -> TrainingTask:
    return task_of(run_of(GPT_2, dropout, 512))


@cache
def gpt_3(dropout: float) -> TrainingTask:
    return task_of(run_of(GPT_3, dropout, 1536))


def layer_by_hand(shape: dict[str, int], dropout: float) -> int:
    return (34 if dropout else 32) * shape["n_embd"] + 4 * shape["n_head"] + 8


def token_by_hand(shape: dict[str, int], dropout: float, activations: str) -> float:
    """The layers' share by what becomes of them; losses in 32-bit, the last norm, ids, a mask."""
    layers, width = shape["n_layer"], shape["n_embd"]
    layer = layer_by_hand(shape, dropout)
    other = 4 * VOCABULARY + (5 if dropout else 4) * width + shape["n_positions"] + 28
    return (
        other
        + {
            Activations.KEPT: layers * layer,
            Activations.BY_LAYER: layers * 2 * width + layer,
            Activations.BY_GROUPS: 2 * sqrt(layers) * 2 * width + layer,
        }[Activations(activations)]
    )


def sequences_held(plan: SystemPlan, shape: dict[str, int], dropout: float) -> float:
    held = plan.figure("memory", "activations beside the cores").value
    by_hand = token_by_hand(shape, dropout, plan.activations)
    return float(held / (shape["n_positions"] * by_hand))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("name", "number"), SYSTEMS)
def test_gpt_2_holds_whole_sequences_counted_by_hand(
    name: str, number: int, dropout: float
) -> None:
    plan = plan_system(gpt_2(dropout), find_system(name), number)
    held = sequences_held(plan, GPT_2, dropout)
    assert held == pytest.approx(round(held), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("name", "number"), CLUSTERS)
def test_gpt_3_holds_whole_sequences_counted_by_hand(
    name: str, number: int, dropout: float
) -> None:
    plan = plan_system(gpt_3(dropout), find_system(name), number)
    held = sequences_held(plan, GPT_3, dropout)
    assert held == pytest.approx(round(held), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), CLUSTERS)
def test_gpt_3_takes_as_long_with_dropout(name: str, number: int) -> None:
    steps = {
        plan_system(gpt_3(dropout), find_system(name), number).figure("step", "step").value
        for dropout in (0.0, 0.1)
    }
    assert len(steps) == 1


def test_a_backward_makes_the_scores_again_with_dropout_too() -> None:
    """Two products of tokens x tokens forward, five backward; 12 h^2 weights, the head's V h."""
    layers, width, tokens, _ = (
        GPT_2[key] for key in ("n_layer", "n_embd", "n_positions", "n_head")
    )
    weights = 12 * layers * width**2 + VOCABULARY * width
    model = gpt_2(0.1).model
    assert model.forward_flops == 2 * weights + layers * 2 * 2 * tokens * width
    assert model.backward_flops == 4 * weights + layers * 5 * 2 * tokens * width


def test_layers_of_a_pipeline_leave_what_is_counted_by_hand() -> None:
    layers = count_layers(run_of(GPT_2, 0.1, 1))[1:-1]
    assert {layer.activation_bytes for layer in layers} == {layer_by_hand(GPT_2, 0.1)}


def test_a_plan_says_how_attention_was_counted() -> None:
    told = plan_system(gpt_2(0.1), find_system("h200"), 1).figure("memory", "fused attentions")
    assert told.value == 12
    assert told.source == (
        "counted as one kernel each: no scores of tokens x tokens stay, with or without dropout"
    )


def test_attention_that_a_model_writes_out_is_counted_and_said() -> None:
    task = task_of(run_of({**GPT_2, "attn_implementation": "eager"}, 0.0, 8))  # type: ignore[dict-item]
    told = plan_system(task, find_system("h200"), 1).figure("memory", "fused attentions")
    assert (told.value, told.source[:20]) == (0, "the model calls none")
    rows, scores = 4 * 12, 2 * 12 * 1024
    assert task.layer_activation_bytes == layer_by_hand(GPT_2, 0.0) - rows + scores
