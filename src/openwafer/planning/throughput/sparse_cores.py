"""Predicts the gain of cores that skip zeros.

A wafer keeps features along its rows of cores and tokens along its columns. A weight that is not
zero starts one product of a scalar and a vector in every core that holds its feature; the partial
sums of an output feature then travel along the column. A core spends ``sum_cycles`` on each of
them whatever the sparsity, which bounds the gain (Lie, Harnessing the power of sparsity for large
GPT models, 2021).

With more tokens than the columns hold, `row_folding` rows work on other tokens instead of other
features: a core then has more features for each partial sum. That rows are folded is inferred.
Without it 90% sparsity would make a layer of 12,288 features 3.1 times as fast, where a near-linear
gain was demonstrated; with all rows folded the gain ends at 3,073, where 3,000 is published.
"""

from openwafer.planning.systems import Fabric


def row_folding(tokens: float, fabric: Fabric) -> float:
    """Rows that work on different tokens: `tokens` of a pass / (lanes x columns), 1 to all rows."""
    needed = tokens / (fabric.lanes.value * fabric.columns.value)
    return min(max(needed, 1.0), fabric.rows.value)


def folding_tokens(folding: float, fabric: Fabric) -> float:
    """Tokens of a pass that fold rows so often; the inverse of `row_folding`."""
    return folding * fabric.lanes.value * fabric.columns.value


def core_rate(features: int, folding: float, sparsity: float, fabric: Fabric) -> float:
    """Products that count as done in a cycle, zeros too, as a share of a dense core's.

    ``x / (x (1 - sparsity) + sum_cycles)`` with the features of a core
    ``x = features * folding / rows``.
    """
    held = features * folding / fabric.rows.value
    return held / (held * (1 - sparsity) + fabric.sum_cycles.value)


def sparse_gain(features: int, folding: float, sparsity: float, fabric: Fabric) -> float:
    """How many times as fast as dense a product with sparse weights is."""
    dense = core_rate(features, folding, 0.0, fabric)
    return core_rate(features, folding, sparsity, fabric) / dense


def greatest_gain(features: int, folding: float, fabric: Fabric) -> float:
    """The gain that no sparsity exceeds: ``1 + features * folding / (sum_cycles * rows)``."""
    return sparse_gain(features, folding, 1.0, fabric)
