"""Metrics of an evaluation: means over all of its batches."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from openwafer.diagnostics import error

__all__ = ["accuracy", "mean", "mean_squared_error"]

Pair = tuple[torch.Tensor, torch.Tensor]


def mean(values: torch.Tensor, weights: torch.Tensor | None = None) -> Pair:
    """The mean of values over all batches.

    Args:
        values: of any shape.
        weights: of the same shape, or of one that broadcasts to it.

    Returns:
        The total of a batch and what it is divided by.
    """
    values = values.detach().float()
    if weights is None:
        return values.sum(), torch.tensor(float(values.numel()))
    weights = weights.float().expand_as(values)
    return (values * weights).sum(), weights.sum()


def accuracy(
    labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | None = None
) -> Pair:
    """The share of predictions that equal their labels; see :func:`mean`."""
    return mean((labels == predictions).float(), weights)


def mean_squared_error(
    labels: torch.Tensor, predictions: torch.Tensor, weights: torch.Tensor | None = None
) -> Pair:
    """The mean of squared differences; see :func:`mean`."""
    return mean((predictions.detach() - labels).square(), weights)


def pairs_of(metrics: Mapping[str, Any] | None, where: str) -> dict[str, Pair]:
    """Totals and what they are divided by, of a spec's metrics.

    Raises:
        OpenwaferError: ``estimator-metric`` for what is neither a tensor nor such a pair.
    """
    return dict(_pairs(metrics or {}, where))


def _pairs(metrics: Mapping[str, Any], where: str) -> Iterator[tuple[str, Pair]]:
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor):
            yield name, mean(value)
        elif (
            isinstance(value, tuple)
            and len(value) == 2
            and all(isinstance(one, torch.Tensor) for one in value)
        ):
            yield name, value
        else:
            raise error(
                "estimator-metric",
                f"{where} returned a {type(value).__name__} as the metric {name!r}",
                help="give a tensor, a pair of a total and its divisor, or what "
                "metrics.accuracy(labels, predictions) returns",
            )


class Means:
    """Sums of pairs by name, in fp64."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def add(self, pairs: Mapping[str, Pair]) -> None:
        """Add those of a batch."""
        for name, pair in pairs.items():
            found = self._sums.setdefault(name, [0.0, 0.0])
            for index, part in enumerate(pair):
                found[index] += part.double().sum().item()

    def values(self) -> dict[str, float]:
        """The means; NaN where nothing was counted."""
        return {
            name: total / count if count else float("nan")
            for name, (total, count) in self._sums.items()
        }
