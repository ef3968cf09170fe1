"""16-bit forwards, loss scaling and metrics of the present style."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.present import amp, cstorch, metrics
from tests.training.frontends.present_scripts import PlainScript, PresentScript, adamw, begin
from tests.training.frontends.session_scripts import MAX_NORM, clip


class Cast(PlainScript):
    """Computes in bfloat16."""

    def step(self, index: int, batch: Tensor) -> Tensor:
        with amp.autocast(torch.bfloat16):
            return super().step(index, batch)


class CastAndStreamed(Cast, PresentScript):
    """The same, streamed."""


def test_a_forward_under_autocast_has_the_bits_of_the_plain_loop() -> None:
    plain, found = Cast(adamw).train(), CastAndStreamed(adamw).train()
    assert found.losses == plain.losses
    assert found.losses != PlainScript(adamw).train().losses


class Scaled(PresentScript):
    """Steps by the style's own call."""

    options: dict[str, Any]

    def step(self, index: int, batch: Tensor) -> Tensor:
        torch.manual_seed(index)
        loss = self.model(batch, labels=batch).loss
        scaler = amp.GradScaler(loss_scale="dynamic", init_scale=2**10)
        amp.optimizer_step(loss, self.optimizer, scaler, max_gradient_norm=MAX_NORM)
        self.scheduler.step()
        return loss  # type: ignore[no-any-return]


def test_a_scaler_leaves_the_loss_and_a_step_clips() -> None:
    assert Scaled(adamw).train().losses == PlainScript(adamw, clip).train().losses


def test_a_scaler_clips_to_its_norm() -> None:
    begin()
    weight = nn.Parameter(torch.ones(1))
    optimizer = cstorch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(max_gradient_norm=0.5)
    scaler.scale(weight.sum() * 4).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.5]))
    assert (scaler.get_scale(), int(scaler.get_num_skipped_steps())) == (1.0, 0)


def test_a_clipped_value_is_each_elements_own() -> None:
    begin()
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = cstorch.optim.SGD([weight], lr=1.0), amp.GradScaler()
    loss = (weight * torch.tensor([4.0, 0.25])).sum()
    amp.optimizer_step(loss, [optimizer], scaler, max_gradient_value=0.5)
    assert weight.tolist() == [0.5, 0.75]


def test_inputs_come_in_the_chosen_format_where_it_is_computed_in() -> None:
    begin()
    assert amp.set_half_dtype("bfloat16") is torch.bfloat16
    assert amp.get_floating_point_dtype() is torch.bfloat16
    amp.use_bfloat16(False)
    assert amp.get_half_dtype() is torch.float16
    amp.enable_mixed_precision(False)
    assert (amp.get_floating_point_dtype(), amp.mixed_precision()) == (torch.float32, False)


def test_float16_on_the_cpu_is_told() -> None:
    begin()
    with (
        pytest.raises(OpenwaferError, match=r"asked for torch\.float16 on the CPU"),
        amp.autocast(torch.float16),
    ):
        pass
    with pytest.raises(OpenwaferError, match="'int8' is no 16-bit format"):
        amp.set_half_dtype("int8")


def test_two_ways_to_clip_are_told() -> None:
    begin()
    optimizer = cstorch.optim.SGD([weight := nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(OpenwaferError, match=r"to the norm 1\.0 and to the value 2\.0"):
        amp.optimizer_step(weight.sum(), optimizer, amp.GradScaler(), 1.0, 2.0)


LABELS, PREDICTIONS = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 0])
# Rows are labels: 1 1 0, 0 2 0, 1 0 0.


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.AccuracyMetric(), 3 / 5),
        (metrics.MeanIOUMetric(3), (1 / 3 + 2 / 3 + 0) / 3),
        (metrics.MeanIOUMetric(3, ignore_classes=[2]), (1 / 3 + 2 / 3) / 2),
        (metrics.DiceCoefficientMetric(3), (2 / 4 + 4 / 5 + 0) / 3),
        (metrics.MeanPerClassAccuracyMetric(4), (1 / 2 + 1 + 0 + 0) / 4),
        (metrics.FBetaScoreMetric(3), 3 / 5),
        (metrics.FBetaScoreMetric(3, average_type="macro"), (1 / 2 + 4 / 5 + 0) / 3),
    ],
)
def test_a_metric_gathers_over_its_updates(metric: metrics.Metric, expected: float) -> None:
    for part in (slice(0, 2), slice(2, 5)):
        found = metric(LABELS[part], PREDICTIONS[part])
    assert float(found) == pytest.approx(expected)
    assert (metric.num_updates, dict(metric.state_dict())) == (2, {})
    metric.reset()
    assert metric.num_updates == 0


def test_weights_of_0_are_not_counted() -> None:
    accuracy, perplexity = metrics.AccuracyMetric("mine"), metrics.PerplexityMetric()
    weights = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0])
    assert float(accuracy(LABELS, PREDICTIONS, weights)) == pytest.approx(2 / 3)
    found = perplexity(LABELS, torch.tensor(3.0), weights, torch.float16)
    assert found.dtype is torch.float16
    assert float(found) == pytest.approx(2.71875)
    assert dict(metrics.get_all_metrics())["mine"] is accuracy


def test_a_mean_is_weighted() -> None:
    found = metrics.MeanMetric()(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]))
    assert float(found) == 13 / 4


def test_labels_of_another_shape_are_told() -> None:
    with pytest.raises(OpenwaferError, match=r"labels are \(5,\) and predictions \(4,\)"):
        metrics.AccuracyMetric()(LABELS, PREDICTIONS[:4])
    with pytest.raises(OpenwaferError, match="average_type='mean'"):
        metrics.FBetaScoreMetric(3, average_type="mean")


LOGITS = torch.tensor([[0.1, 0.7, 0.2, 0.0], [0.4, 0.3, 0.2, 0.1]])


def test_labels_are_counted_among_the_largest_predictions() -> None:
    labels, weights = torch.tensor([[1, 3, 0], [0, 1, 2]]), torch.tensor([1.0, 3.0])
    assert metrics.PrecisionAtKMetric(2)(labels, LOGITS) == pytest.approx(3 / 4)
    assert metrics.RecallAtKMetric(2)(labels, LOGITS) == pytest.approx(3 / 6)
    assert metrics.RecallAtKMetric(2)(labels, LOGITS, weights) == pytest.approx(7 / 12)


def area(**options: Any) -> float:
    metric = metrics.AUCMetric(**options)
    truth, scores = torch.tensor([0, 1, 0, 1]), torch.tensor([0.1, 0.3, 0.6, 0.9])
    for part in (slice(0, 1), slice(1, 4)):
        metric(truth[part], scores[part])
    return float(metric.compute())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Three of the four pairs are in their order.
        ({}, 3 / 4),
        ({"thresholds": [0.5]}, 1 / 2),
        ({"thresholds": [0.5], "summation_method": "minoring"}, 1 / 4),
        ({"thresholds": [0.5], "summation_method": "majoring"}, 3 / 4),
        ({"curve": "PR", "summation_method": "minoring"}, 0.5 * 1 / 2),
        # A miss comes between: from 1 hit of 2 to 2 of 3.
        ({"curve": "PR"}, 1 / 2 + (1 - math.log(3 / 2)) / 2),
    ],
)
def test_an_area_is_summed_over_thresholds(options: dict[str, Any], expected: float) -> None:
    assert area(**options) == pytest.approx(expected, abs=1e-6)


def test_what_has_no_area_is_told() -> None:
    with pytest.raises(OpenwaferError, match=r"predictions lie from 0\.5 to 2\.0"):
        metrics.AUCMetric()(torch.tensor([0, 1]), torch.tensor([0.5, 2.0]))
    with pytest.raises(OpenwaferError, match="curve='roc'"):
        metrics.AUCMetric(curve="roc")
