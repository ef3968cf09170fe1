"""Causal attention of queries, keys and values that rest on the wafer, and its gradients."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.attention_cycles import AttentionCycles
from openwafer.sdk.kernels.elementary import LEAST_POWER
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.precision import UNIT, gamma
from openwafer.sdk.kernels.resting import Resting, check_fit, memory_bytes, resting, shape_of
from openwafer.sdk.kernels.running import Result, compiled, cycles_of

_LAYER: Final = 6
"""Number in the program."""
_F32: Final = np.dtype(np.float32)
_MOST: Final = 1e30
"""Magnitude of scores which the program takes for what is not seen."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """What attention gives back.

    Attributes:
        values: (features, tokens).
        kept: of each PE, for the backward pass: greatest scores, and one over sums of exponentials.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    kept: NDArray[Any]
    cycles: int


@dataclass(frozen=True, eq=False)
class AttentionGradients:
    """Gradients of attention, (features, tokens) each.

    Attributes:
        queries: of these.
        keys: of these.
        values: of these.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    queries: NDArray[Any]
    keys: NDArray[Any]
    values: NDArray[Any]
    cycles: int


@dataclass(frozen=True)
class AttentionPlan:
    """How attention is done, before anything is compiled.

    Queries stay; blocks of keys and values, those of a PE's tokens, go around each row of PEs, and
    backward their gradients with them. The scores of all heads are added up along the column, and
    each of its PEs takes all exponentials, less the greatest score so far.

    Attributes:
        heads: that features belong to, in equal parts one behind the other.
        length: tokens of a sequence; sequences lie one behind the other.
        at_rest: where activations lie.
    """

    heads: int
    length: int
    at_rest: Resting

    @property
    def head_size(self) -> int:
        """Features of a head."""
        return self.at_rest.num_features // self.heads

    @property
    def num_scores(self) -> int:
        """Of a block of keys with a PE's queries, of all heads."""
        return self.heads * self.at_rest.tokens**2

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code; of the backward pass."""
        size, queries = self.at_rest.size, self.heads * self.at_rest.tokens
        return memory_bytes(17 * size + 3 * self.num_scores + 4 * queries + 135)

    @property
    def most_blocks(self) -> int:
        """Of keys that a PE's queries see."""
        return int(self._cycles.blocks.max())

    @property
    def cycles(self) -> int:
        """Predicted cycles of the forward pass."""
        return self._cycles.forward

    @property
    def backward_cycles(self) -> int:
        """Predicted cycles of the backward pass."""
        return self._cycles.backward

    @property
    def _cycles(self) -> AttentionCycles:
        return AttentionCycles(self.heads, self.length, self.at_rest)

    def forward(
        self,
        queries: NDArray[Any],
        keys: NDArray[Any],
        values: NDArray[Any],
        *,
        check: bool = False,
    ) -> AttentionResult:
        """Attention on the simulated wafer.

        Args:
            queries: (features, tokens), float32, finite.
            keys: the same.
            values: the same.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes or types are others, or scores may leave the numbers' range.
        """
        given = self._spread(queries, keys, values)
        with compiled("layers", self.at_rest.arch, self._params(is_backward=False)).run(
            check=check
        ) as run:
            run["x"] = given
            run.launch("main")
            out = self.at_rest.collected(run["y"])
            return AttentionResult(out, run["kept"].copy(), cycles_of(run, self.at_rest.arch))

    def backward(
        self,
        dout: NDArray[Any],
        given: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
        result: AttentionResult,
        *,
        check: bool = False,
    ) -> AttentionGradients:
        """Gradients on the simulated wafer.

        Args:
            dout: gradients of the result, (features, tokens), float32, finite.
            given: queries, keys and values.
            result: what :meth:`forward` gave.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: shapes or types are others, or scores may leave the numbers' range.
        """
        at_rest, size = self.at_rest, self.at_rest.size
        spread, dy = self._spread(*given), at_rest.spread("DOUT", dout)
        out = at_rest.spread("result", result.values)
        with compiled("layers", at_rest.arch, self._params(is_backward=True)).run(
            check=check
        ) as run:
            run["x"], run["dy"], run["kept"] = spread, dy, result.kept
            run["y"] = np.concatenate([out, np.zeros_like(spread)], axis=2)
            run.launch("main")
            found = run["y"].reshape(*dy.shape[:2], 4, size)
            return AttentionGradients(
                queries=at_rest.collected(found[:, :, 1]),
                keys=at_rest.collected(found[:, :, 2]),
                values=at_rest.collected(found[:, :, 3]),
                cycles=cycles_of(run, at_rest.arch),
            )

    def _spread(self, *given: NDArray[Any]) -> NDArray[Any]:
        names = ("queries", "keys", "values")
        spread = [self.at_rest.spread(*one) for one in zip(names, given, strict=True)]
        queries, keys = (np.abs(one.astype(float)).max() for one in given[:2])
        if queries * keys * self.head_size > _MOST / 1e6:
            raise error(
                "kernel-range",
                f"queries of magnitude {queries:g} and keys of {keys:g}; scores may be above "
                f"{_MOST / 1e6:g}",
                help="scale them",
            )
        return np.concatenate(spread, axis=2)

    def _params(self, *, is_backward: bool) -> dict[str, Param]:
        return {
            **self.at_rest.params,
            "layer": _LAYER,
            "heads": self.heads,
            "length": self.length,
            "is_backward": is_backward,
        }

    def error_bound(
        self, queries: NDArray[Any], keys: NDArray[Any], values: NDArray[Any]
    ) -> Floats:
        """Bound of the error of each value of the forward pass.

        A score's error is that of a sum of its products. A weight's error, as a share of it, is
        that of its score, and of exponentials and products as many blocks come: each is off by 5
        units of 2**-24 and by one of its exponent. Sums have the same errors.

        Args:
            queries: (features, tokens), finite.
            keys: the same.
            values: the same.
        """
        weights, off, _ = self._weights(queries, keys)
        value = np.abs(self._by_head(values))
        found: Floats = np.einsum("hqk,hdk->hdq", weights * off + LEAST_POWER, value)
        return found.reshape(values.shape) + LEAST_POWER

    def _by_head(self, x: NDArray[Any]) -> Floats:
        return x.astype(np.float64).reshape(self.heads, self.head_size, -1)

    def _weights(self, queries: NDArray[Any], keys: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """Weights (heads, queries, keys), bounds of their errors as shares, scores."""
        token, scale = np.arange(self.at_rest.num_tokens), self.head_size**-0.5
        first = token // self.length * self.length
        is_seen = (token <= token[:, None]) & (token >= first[:, None])
        query, key = self._by_head(queries), self._by_head(keys)
        scores = np.einsum("hdq,hdk->hqk", query, key) * scale
        sizes = np.einsum("hdq,hdk->hqk", np.abs(query), np.abs(key)) * scale
        of_scores = gamma(self.at_rest.num_additions + 4, _F32) * sizes
        seen = np.where(is_seen, scores, -np.inf)
        below = seen - seen.max(2, keepdims=True)
        weights = np.exp(below)
        weights /= weights.sum(2, keepdims=True)
        blocks = self.most_blocks
        span = np.where(is_seen, -below, 0).max(2, keepdims=True)
        most = np.where(is_seen, of_scores, 0).max(2, keepdims=True)
        off = most + UNIT * (2 * span + 7 * blocks + 10) + gamma(self.at_rest.num_tokens, _F32)
        return weights, np.broadcast_to(np.expm1(2.02 * off), weights.shape), is_seen.astype(float)

    def gradient_bounds(
        self, dout: NDArray[Any], given: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    ) -> AttentionGradients:
        """Bounds of the errors of the gradients, with those of the forward pass.

        Args:
            dout: gradients of the result, (features, tokens).
            given: queries, keys and values.
        """
        query, key, value = (self._by_head(one) for one in given)
        weights, off, is_seen = self._weights(*given[:2])
        out = np.einsum("hqk,hdk->hdq", weights, value)
        of_out, slope = self._by_head(self.error_bound(*given)), self._by_head(dout)
        of_sum = gamma(self.at_rest.num_additions + 3, _F32)
        toward = np.einsum("hdq,hdk->hqk", slope, value)
        size = np.einsum("hdq,hdk->hqk", np.abs(slope), np.abs(value))
        along = (slope * out).sum(1)[:, :, None]
        along_size = (np.abs(slope) * (np.abs(out) + of_out)).sum(1)[:, :, None]
        of_along = (np.abs(slope) * of_out).sum(1)[:, :, None] + of_sum * along_size
        of_difference = of_sum * size + of_along + 3 * UNIT * (size + along_size)
        exact = np.abs(weights * (toward - along))
        of_scores = exact * off + (weights * (1 + off) + LEAST_POWER * is_seen) * of_difference
        of_scores += LEAST_POWER * (size + along_size)
        whole = gamma(self.at_rest.num_tokens + 5, _F32) * (exact + of_scores) + of_scores
        of_weights = weights * off + LEAST_POWER
        of_weights += gamma(self.at_rest.num_tokens + 5, _F32) * (weights + of_weights)
        scale, shape = self.head_size**-0.5, dout.shape
        of_queries = np.einsum("hqk,hdk->hdq", whole, np.abs(key)) * scale
        of_keys = np.einsum("hqk,hdq->hdk", whole, np.abs(query)) * scale
        of_values = np.einsum("hqk,hdq->hdk", of_weights, np.abs(slope))
        return AttentionGradients(
            queries=of_queries.reshape(shape) + LEAST_POWER,
            keys=of_keys.reshape(shape) + LEAST_POWER,
            values=of_values.reshape(shape) + LEAST_POWER,
            cycles=0,
        )


@takes_operands
def plan_attention(
    shape: tuple[int, int],
    heads: int,
    size: tuple[int, int],
    *,
    length: int | None = None,
    arch: str = Arch.WSE3,
) -> AttentionPlan:
    """Plan causal attention of activations at rest.

    Args:
        shape: features and tokens.
        heads: that the features belong to; the rows of PEs divide those of a head.
        size: rows and columns of PEs.
        length: tokens of a sequence; None takes all for one.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE, or features or tokens do not divide.
    """
    if heads < 1 or shape[0] % heads or shape[0] // heads % size[0]:
        raise error(
            "kernel-heads",
            f"{shape[0]} features in {heads} heads on {size[0]} rows of PEs; each row has as many "
            "features of each head",
            help="choose rows that divide the features of a head",
        )
    if length is not None and length < 1:
        raise error("kernel-shape", f"sequences of {length} tokens", help="give 1 token or more")
    sequence = shape[1] if length is None else length
    rough = resting(shape, size, arch)
    at_rest = resting(shape, size, arch, message=heads * rough.tokens)
    plan = AttentionPlan(heads, sequence, at_rest)
    check_fit(plan.at_rest, plan.memory_bytes)
    return plan


@takes_operands
def attention(
    queries: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    heads: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
) -> Result:
    """Causal attention of one sequence: softmax(Q^T K / sqrt(head's features)) of each head.

    Errors are at most :meth:`AttentionPlan.error_bound`. The order of sums is that of the plan.

    Args:
        queries: (features, tokens), float32, finite.
        keys: the same.
        values: the same.
        heads: that the features belong to, in equal parts one behind the other.
        size: rows and columns of PEs; the rows divide the features of a head.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shapes or types do not fit, or the rectangle or its memory is too small.
    """
    plan = plan_attention(shape_of(queries), heads, size, arch=arch)
    result = plan.forward(queries, keys, values)
    return Result(result.values, result.cycles)
