"""What scripts find in ``cstorch.metrics``: numbers that gather over the steps of an evaluation."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error

__all__ = [
    "AUCMetric",
    "AccuracyMetric",
    "DiceCoefficientMetric",
    "FBetaScoreMetric",
    "MeanIOUMetric",
    "MeanMetric",
    "MeanPerClassAccuracyMetric",
    "Metric",
    "PerplexityMetric",
    "PrecisionAtKMetric",
    "RecallAtKMetric",
    "compute_all_metrics",
    "get_all_metrics",
]


class Metric(nn.Module):
    """A metric: its state is kept in buffers that no checkpoint has.

    A subclass writes ``reset``, which registers its state, ``update`` and ``compute``. To call a
    metric is to update it and to compute it.

    Args:
        name: by which a script finds it; by default that of its class.

    Attributes:
        num_updates: since the last reset.
    """

    registry: ClassVar[dict[str, list["Metric"]]] = defaultdict(list)
    _dtype: torch.dtype | None = None

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name or type(self).__name__
        self.num_updates = 0
        self.registry[self.name].append(self)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        raise NotImplementedError

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take a step's values."""
        raise NotImplementedError

    def compute(self) -> Any:
        """The metric over all updates."""
        raise NotImplementedError

    def register_state(self, name: str, tensor: Tensor, persistent: bool = False) -> None:
        """Keep a tensor under a name; in checkpoints only where `persistent`."""
        self.register_buffer(name, tensor, persistent=persistent)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric, and compute it."""
        with torch.no_grad():
            self.update(*args, **kwargs)
            self.num_updates += 1
            return self.compute()

    def __float__(self) -> float:
        return float(self.compute())

    def _sum(self, name: str, value: Tensor | float) -> None:
        getattr(self, name).add_(value.to(self._device) if torch.is_tensor(value) else value)

    def _cast(self, found: Tensor) -> Tensor:
        """As the last update asked for it."""
        return found if self._dtype is None else found.to(self._dtype)

    @property
    def _device(self) -> torch.device:
        return next(self.buffers()).device


def get_all_metrics() -> Iterator[tuple[str, Metric]]:
    """All metrics of the process by name; several of one name are numbered."""
    for name, metrics in Metric.registry.items():
        for number, metric in enumerate(metrics):
            yield f"{name}.{number}" if len(metrics) > 1 else name, metric


def compute_all_metrics() -> dict[str, Any]:
    """What each metric of the process is by now, by name."""
    return {name: metric.compute() for name, metric in get_all_metrics()}


class _Ratio(Metric):
    """A sum, and what it is divided by."""

    total: Tensor
    count: Tensor

    def reset(self) -> None:
        """Begin anew."""
        self.register_state("total", torch.zeros(()))
        self.register_state("count", torch.zeros(()))
        self.num_updates, self._dtype = 0, None

    def compute(self) -> Tensor:
        """The sum of all updates, divided by their count."""
        return self._cast(self.total / self.count)

    def _add(self, total: Tensor, count: Tensor | float, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._sum("total", total.float())
        self._sum("count", count)


class AccuracyMetric(_Ratio):
    """Share of predictions that are their labels, weighted; a weight of 0 is not counted."""

    def update(
        self,
        labels: Tensor,
        predictions: Tensor,
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take labels and predictions of one shape, and weights that broadcast to it."""
        _require_alike(labels, predictions)
        hits = (labels == predictions).float()
        if weights is None:
            self._add(hits.sum(), hits.numel(), dtype)
        else:
            self._add((hits * weights).sum(), (weights > 0).sum(), dtype)


class PerplexityMetric(_Ratio):
    """exp of the summed losses by the number of tokens whose weight is not 0."""

    def update(
        self,
        labels: Tensor,
        loss: Tensor,
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take labels of any shape and the sum of their losses."""
        self._add(loss, labels.numel() if weights is None else (weights > 0).sum(), dtype)

    def compute(self) -> Tensor:
        """See the class."""
        return self._cast(torch.exp(self.total / self.count))


class MeanMetric(_Ratio):
    """Weighted mean of values."""

    def update(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take values, and weights of their shape."""
        if weights is None:
            self._add(values.sum(), values.numel(), dtype)
        else:
            self._add((values * weights).sum(), weights.sum(), dtype)


class _Confusion(Metric):
    """What counts classes of labels against classes of predictions.

    Args:
        num_classes: labels and predictions lie below.
        ignore_classes: of which nothing is told.
        name: see :class:`Metric`.
    """

    confusion_matrix: Tensor

    def __init__(
        self,
        num_classes: int,
        ignore_classes: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        self.num_classes = num_classes
        self._kept = [c for c in range(num_classes) if c not in (ignore_classes or ())]
        super().__init__(name)

    def reset(self) -> None:
        """Begin anew."""
        self.register_state("confusion_matrix", torch.zeros(self.num_classes, self.num_classes))
        self.num_updates, self._dtype = 0, None

    def update(
        self,
        labels: Tensor,
        predictions: Tensor,
        weights: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take labels, predictions and weights of one shape."""
        _require_alike(labels, predictions)
        self._dtype = dtype
        cells = labels.flatten().long() * self.num_classes + predictions.flatten().long()
        counted = None if weights is None else weights.flatten().float()
        found = torch.bincount(cells, counted, self.num_classes**2).float()
        self._sum("confusion_matrix", found.view(self.num_classes, self.num_classes))

    def _counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the classes that count: hits, labels, predictions."""
        matrix = self.confusion_matrix
        counts = matrix.diagonal(), matrix.sum(dim=1), matrix.sum(dim=0)
        hits, labels, predictions = (count[self._kept] for count in counts)
        return hits, labels, predictions


class MeanIOUMetric(_Confusion):
    """Intersection over union of labels and predictions, averaged over classes that appear."""

    def compute(self) -> Tensor:
        """See the class; 0 where none appears."""
        hits, labels, predictions = self._counts()
        return self._cast(_mean_of_present(hits, labels + predictions - hits))


class DiceCoefficientMetric(_Confusion):
    """Twice the hits over labels and predictions, averaged over classes that appear."""

    def compute(self) -> Tensor:
        """See the class; 0 where none appears."""
        hits, labels, predictions = self._counts()
        return self._cast(_mean_of_present(2 * hits, labels + predictions))


class MeanPerClassAccuracyMetric(_Confusion):
    """Share of each class's labels that are predicted, averaged over all classes.

    A class without labels counts as 0.
    """

    def __init__(self, num_classes: int, name: str | None = None) -> None:
        super().__init__(num_classes, name=name)

    def compute(self) -> Tensor:
        """See the class."""
        hits, labels, _ = self._counts()
        return self._cast(_ratio(hits, labels).mean())


class FBetaScoreMetric(_Confusion):
    """(1 + beta^2) precision recall / (beta^2 precision + recall).

    Args:
        num_classes, ignore_labels, name: see :class:`_Confusion`.
        beta: see above.
        average_type: ``"micro"`` of all samples, or ``"macro"``, the mean of the classes' own.

    Raises:
        OpenwaferError: ``present-metric``.
    """

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        if average_type not in ("micro", "macro") or beta <= 0:
            raise error(
                "present-metric",
                f"FBetaScoreMetric got beta={beta}, average_type={average_type!r}",
                help="beta is above 0, average_type micro or macro",
            )
        super().__init__(num_classes, ignore_labels, name)
        self._beta, self._is_micro = beta, average_type == "micro"

    def compute(self) -> Tensor:
        """See the class."""
        hits, labels, predictions = self._counts()
        if self._is_micro:
            hits, labels, predictions = hits.sum(), labels.sum(), predictions.sum()
        precision, recall = _ratio(hits, predictions), _ratio(hits, labels)
        share = self._beta**2
        scores = _ratio((1 + share) * precision * recall, share * precision + recall)
        return self._cast(scores.mean())


class _AtK(_Ratio):
    """Counts labels among the `k` largest predictions of a sample.

    Args:
        k: how many predictions.
        name: see :class:`Metric`.
    """

    def __init__(self, k: int, name: str | None = None) -> None:
        self.k = k
        super().__init__(name)

    def update(self, labels: Tensor, predictions: Tensor, weights: Tensor | None = None) -> None:
        """Take labels (samples, labels), predictions (samples, classes), weights of samples."""
        chosen = predictions.topk(self.k, dim=-1).indices
        hits = (labels.unsqueeze(-1) == chosen.unsqueeze(-2)).sum((-2, -1)).float()
        each = torch.ones_like(hits) if weights is None else weights.float().expand_as(hits)
        self._add((hits * each).sum(), each.sum() * self._num_of(labels), None)

    def _num_of(self, labels: Tensor) -> int:
        """What the hits of one sample are divided by."""
        raise NotImplementedError

    def compute(self) -> float:  # type: ignore[override]
        """See the class."""
        return float(super().compute())


class PrecisionAtKMetric(_AtK):
    """Share of the `k` largest predictions that are labels."""

    def _num_of(self, labels: Tensor) -> int:
        return self.k


class RecallAtKMetric(_AtK):
    """Share of labels that are among the `k` largest predictions."""

    def _num_of(self, labels: Tensor) -> int:
        return labels.shape[-1]


class AUCMetric(Metric):
    """Area under the curve of a binary classifier, by sums over thresholds.

    Args:
        num_thresholds: evenly from 0 to 1.
        curve: ``"ROC"``, or ``"PR"`` of precision by recall.
        name: see :class:`Metric`.
        summation_method: height between two thresholds: ``"interpolation"``, the smaller one by
            ``"minoring"``, the larger one by ``"majoring"``. Precision is interpolated as Davis and
            Goadrich 2006 do.
        thresholds: between 0 and 1, in place of `num_thresholds`.

    Raises:
        OpenwaferError: ``present-metric``.
    """

    counts: Tensor
    """Weights of samples above each threshold: of label 1, and of label 0."""
    totals: Tensor
    """Weights of samples of label 1, and of label 0."""

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        name: str | None = None,
        summation_method: str = "interpolation",
        thresholds: Sequence[float] | None = None,
    ) -> None:
        methods = ("interpolation", "minoring", "majoring")
        are_known = curve in ("ROC", "PR") and summation_method in methods
        if not are_known or (thresholds is None and num_thresholds < 2):
            raise error(
                "present-metric",
                f"AUCMetric got num_thresholds={num_thresholds}, curve={curve!r}, "
                f"summation_method={summation_method!r}",
                help=f"at least 2 thresholds, ROC or PR, and one of {', '.join(methods)}",
            )
        self._curve, self._method = curve, summation_method
        even = (n / (num_thresholds - 1) for n in range(1, num_thresholds - 1))
        inner = even if thresholds is None else sorted(thresholds)
        self._thresholds = torch.tensor([-1e-7, *inner, 1 + 1e-7])
        super().__init__(name)

    def reset(self) -> None:
        """Begin anew."""
        self.register_state("counts", torch.zeros(2, len(self._thresholds)))
        self.register_state("totals", torch.zeros(2))
        self.num_updates = 0

    def update(self, labels: Tensor, predictions: Tensor, weights: Tensor | None = None) -> None:
        """Take labels, predictions from 0 to 1, and weights, of one shape."""
        _require_alike(labels, predictions)
        truth, found = labels.flatten() > 0, predictions.flatten().float()
        if bool(((found < 0) | (found > 1)).any()):
            raise error(
                "present-metric",
                f"predictions lie from {float(found.min())} to {float(found.max())}",
                help="give probabilities between 0 and 1, as by sigmoid",
            )
        each = torch.ones_like(found) if weights is None else weights.flatten().float()
        above = found > self._thresholds.to(found.device)[:, None]
        of_label = torch.stack((each * truth, each * ~truth))
        self._sum("counts", of_label @ above.float().T)
        self._sum("totals", of_label.sum(-1))

    def compute(self) -> float:
        """See the class."""
        hits, misses = self.counts
        if self._curve == "PR" and self._method == "interpolation":
            return float(self._interpolated_precision())
        recall = _ratio(hits, self.totals[0].expand_as(hits))
        if self._curve == "ROC":
            across, height = _ratio(misses, self.totals[1].expand_as(misses)), recall
        else:
            across, height = recall, _ratio(hits, hits + misses)
        left, right = height[:-1], height[1:]
        match self._method:
            case "minoring":
                between = torch.minimum(left, right)
            case "majoring":
                between = torch.maximum(left, right)
            case _:
                between = (left + right) / 2
        return float(((across[:-1] - across[1:]) * between).sum())

    def _interpolated_precision(self) -> Tensor:
        # Hits and positives change evenly between thresholds; the integral of their ratio is exact.
        hits, positives = self.counts[0], self.counts.sum(0)
        change = hits[:-1] - hits[1:]
        slope = _ratio(change, (positives[:-1] - positives[1:]).clamp(min=0))
        rest = hits[1:] - slope * positives[1:]
        are_both = (positives[:-1] > 0) & (positives[1:] > 0)
        ratio = torch.where(are_both, _ratio(positives[:-1], positives[1:]), 1.0)
        parts = slope * (change + rest * ratio.log())
        return _ratio(parts, self.totals[0].expand_as(parts)).sum()


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """`part` by `whole`; 0 where that is 0."""
    return torch.where(whole == 0, torch.zeros_like(whole), part / whole)


def _mean_of_present(part: Tensor, whole: Tensor) -> Tensor:
    num_present = (whole > 0).sum()
    return _ratio(_ratio(part, whole).sum(), num_present.to(part.dtype))


def _require_alike(labels: Tensor, predictions: Tensor) -> None:
    if labels.shape != predictions.shape:
        raise error(
            "present-metric",
            f"labels are {tuple(labels.shape)} and predictions {tuple(predictions.shape)}",
            help="give a prediction for each label, as by logits.argmax(-1)",
        )
