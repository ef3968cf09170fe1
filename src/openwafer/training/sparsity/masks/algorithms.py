"""How masks change in training: static, GMP, SET, RigL, IMP.

Each algorithm is plain data with the same two questions: :func:`wants_gradient` before a training
step and :func:`updated` behind it, for one weight at a time. `step` counts the training steps that
are done, so that the mask of step 0 is the initial one and an update sees the weights that the
optimizer has left, as in ``cerebras.pytorch.sparse``, and in the code of RigL's authors for SET;
their RigL takes the place of the optimizer's update, and its paper shows both in one branch.

A training step whose gradients are not finite is no update: the caller makes none. RigL, which
sees a gradient, and all others, which see weights, leave the mask as it is where what they see is
not finite, and say so (`is_skipped`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from openwafer.diagnostics import error
from openwafer.training.sparsity.masks.schedules import Schedule, Target, value_at
from openwafer.training.sparsity.masks.structures import (
    NOT_ELIGIBLE,
    Structure,
    are_finite,
    count,
    largest,
    magnitudes,
    num_kept,
    random_scores,
    share_of,
)


@dataclass(frozen=True)
class MaskUpdate:
    """A mask and how it differs from the one before.

    A weight that an algorithm drops and grows again in the same update stays as it is, with its
    optimizer states, and is in neither `dropped` nor `regrown`; so does the code of RigL's authors
    (``google-research/rigl``, ``reinit_when_same=False``).

    Attributes:
        mask: the new one, bool of the weight's shape.
        dropped: kept before, not now; value and optimizer states are forgotten.
        regrown: kept now, not before; value and optimizer states begin at 0.
        is_rewound: kept weights go back to the values of IMP's `rewind_step`, and their optimizer
            states to 0.
        is_skipped: nothing was decided, since weights or gradient are not finite.
    """

    mask: Tensor
    dropped: Tensor
    regrown: Tensor
    is_rewound: bool = False
    is_skipped: bool = False

    @property
    def num_dropped(self) -> int:
        """Weights that were kept and are not."""
        return int(self.dropped.count_nonzero())

    @property
    def num_regrown(self) -> int:
        """Weights that are kept and were not."""
        return int(self.regrown.count_nonzero())


def update_to(mask: Tensor, new: Tensor, *, is_rewound: bool) -> MaskUpdate:
    """The update that takes `mask` to `new`."""
    return MaskUpdate(new, mask & ~new, new & ~mask, is_rewound)


def no_update(mask: Tensor, *, is_skipped: bool = False) -> MaskUpdate:
    """The update that leaves `mask` as it is."""
    nothing = torch.zeros_like(mask)
    return MaskUpdate(mask, nothing, nothing, is_skipped=is_skipped)


def carried(values: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Values of the mask `before` in the order of the mask `after`, 0 where weights are regrown.

    Args:
        values: [kept before], row-major: weights, or an optimizer state.
        before: bool, any shape.
        after: bool, the same shape.

    Returns:
        [kept after], row-major.
    """
    spread = torch.zeros(before.shape, dtype=values.dtype, device=values.device)
    spread[before] = values
    return spread[after]


@dataclass(frozen=True)
class GrowthCandidates:
    """Magnitudes of gradients that growing may choose from.

    Attributes:
        kept: of the kept units, [kept units] in their order.
        positions: of the largest others, int64 [candidates], rising, in [groups, units] flattened.
        others: their magnitudes, [candidates].
        is_finite: whether the whole gradient is.
    """

    kept: Tensor
    positions: Tensor
    others: Tensor
    is_finite: bool

    def scores(self, units: Tensor) -> Tensor:
        """Magnitudes [groups, units] where kept or a candidate, and -1 elsewhere.

        Args:
            units: bool [groups, units], those that were kept when the gradient was taken.
        """
        found = torch.full(units.shape, NOT_ELIGIBLE, dtype=self.kept.dtype, device=units.device)
        found[units] = self.kept.to(units.device)
        found.reshape(-1)[self.positions.to(units.device)] = self.others.to(units.device)
        return found


def growth_candidates(
    gradient: Tensor, mask: Tensor, structure: Structure, num: int
) -> GrowthCandidates:
    """Reduce a dense gradient to what growing may choose from.

    Args:
        gradient: of the loss by every weight, kept or not, summed over all micro-batches.
        mask: of the step that the gradient is of, the gradient's shape.
        num: at most so many units grow in a group.
    """
    units = structure.units_of(mask)
    scores = structure.unit_scores(magnitudes(gradient))
    eligible = scores.masked_fill(units, NOT_ELIGIBLE)
    num_others = (units.shape[1] - count(units)).clamp(max=num)
    is_finite = are_finite(scores)
    # Where it is not finite nothing is decided, and NaN has no place in an order.
    chosen = largest(eligible, num_others) if is_finite else torch.zeros_like(units)
    positions = chosen.reshape(-1).nonzero().reshape(-1)
    return GrowthCandidates(scores[units], positions, scores.reshape(-1)[positions], is_finite)


@dataclass(frozen=True)
class Static:
    """One mask for the whole run."""

    target: Target


@dataclass(frozen=True)
class GMP:
    """Gradual magnitude pruning: the largest weights are kept, fewer and fewer.

    Zhu and Gupta, arXiv 1710.01878: what was dropped stays dropped while sparsity rises. They do
    not say what happens where it falls; here units grow at random, since magnitude cannot tell
    zeros apart.
    """

    target: Target
    seed: int


@dataclass(frozen=True)
class SET:
    """Sparse evolutionary training: the smallest weights are dropped, as many grow at random.

    Mocanu et al., arXiv 1707.04780, algorithm 1. They drop a share of the smallest positive and
    one of the largest negative weights, and draw new weights at random; here the smallest by
    magnitude are dropped and new ones begin at 0, as in RigL's comparison with SET (arXiv
    1911.11134) and in ``cerebras.pytorch.sparse``. See :class:`RigL` for `floors_left`.
    """

    target: Target
    drop_fraction: Schedule
    seed: int
    floors_left: bool = False


@dataclass(frozen=True)
class RigL:
    """Rigging the lottery: the smallest weights are dropped, and grow where gradients are largest.

    Evci et al., arXiv 1911.11134, algorithm 1: a unit that this update drops may grow in it again,
    since it is looked for everywhere but among those that stay.

    Attributes:
        floors_left: whether the number of units that stay is rounded down, as in
            ``cerebras.pytorch.sparse``, and not the number of those dropped, as the authors do.
    """

    target: Target
    drop_fraction: Schedule
    floors_left: bool = False

    def max_growth(self, step: int, mask: Tensor) -> int:
        """Units that the update of `step` may grow in a group: all that its gradient must tell."""
        units = self.target.structure.units_of(mask)
        num_groups = units.shape[0]
        num_units = self.target.num_units(step, tuple(mask.shape))
        if num_groups > 1:
            return num_units
        num_left = min(_num_left(self, step, int(units.count_nonzero())), num_units)
        return num_units - num_left

    def candidates(self, step: int, gradient: Tensor, mask: Tensor) -> GrowthCandidates:
        """What :func:`updated` needs of the dense gradient of the training step before `step`.

        Args:
            gradient: by every weight, whether kept or not; summed over micro-batches.
            mask: the one that the training step had.
        """
        num = self.max_growth(step, mask)
        return growth_candidates(gradient, mask, self.target.structure, num)


@dataclass(frozen=True)
class IMP:
    """Iterative magnitude pruning: train, prune the smallest weights, rewind, and again.

    Frankle and Carbin, arXiv 1803.03635: `rewind_step` 0 goes back to the initial weights; a few
    steps later is steadier in large models (arXiv 1912.05671); ``None`` goes on with the weights
    as they are, which is pruning with retraining (Han et al., arXiv 1506.02626). Dense parameters
    go back with the sparse ones.
    """

    target: Target
    rewind_step: int | None

    def rewinds(self, step: int) -> bool:
        """Whether the update of `step` goes back: it prunes, as it does until the last sparsity."""
        sparsity, num_updates = self.target.sparsity, self.target.updates.num_until(step)
        is_denser_before = sparsity(step, num_updates - 1) < sparsity(step, num_updates)
        return self.rewind_step is not None and is_denser_before


Algorithm = Static | GMP | SET | RigL | IMP


def is_update(algorithm: Algorithm, step: int) -> bool:
    """Whether masks are updated behind `step` training steps."""
    return algorithm.target.updates.is_update(step)


def wants_gradient(algorithm: Algorithm, step: int) -> bool:
    """Whether the training step that is the `step`-th, from 1, needs gradients of all weights."""
    return isinstance(algorithm, RigL) and is_update(algorithm, step)


def updated(
    algorithm: Algorithm,
    step: int,
    name: str,
    weights: Tensor,
    mask: Tensor,
    candidates: GrowthCandidates | None = None,
) -> MaskUpdate:
    """The mask of one weight behind `step` training steps.

    The number kept is that of the target at `step`, whatever it was before. Where sparsity has
    risen by more than the drop fraction, more is dropped, so that the target holds;
    ``cerebras.pytorch.sparse`` keeps more than the target then.

    Args:
        step: training steps that are done; behind any other than an update's nothing changes.
        name: of the parameter, which random choices depend on.
        weights: as the optimizer has left them, in full shape; those not in `mask` are not read.
        mask: the one that the training step had, bool.
        candidates: from the gradient of that training step; RigL alone needs them.

    Raises:
        OpenwaferError: ``gradient-missing``; ``sparsity-range``.
    """
    if not is_update(algorithm, step):
        return no_update(mask)
    structure = algorithm.target.structure
    units = structure.units_of(mask)
    sizes = structure.unit_scores(magnitudes(weights).masked_fill_(~mask, NOT_ELIGIBLE))
    if not are_finite(sizes):
        return no_update(mask, is_skipped=True)
    num_units = algorithm.target.num_units(step, tuple(mask.shape))
    match algorithm:
        case Static():
            return no_update(mask)
        case GMP():
            left = _most(sizes, units, num_units)
            new = _grown(left, num_units, _at_random(algorithm.seed, step, name, units))
        case IMP():
            new = _most(sizes, units, num_units)
        case SET():
            left = _undropped(algorithm, step, sizes, units, num_units)
            new = _grown(left, num_units, _at_random(algorithm.seed, step, name, units))
        case RigL():
            candidates = _required(candidates, step, name)
            if not candidates.is_finite:
                return no_update(mask, is_skipped=True)
            left = _undropped(algorithm, step, sizes, units, num_units)
            new = _grown(left, num_units, candidates.scores(units))
    is_rewound = isinstance(algorithm, IMP) and algorithm.rewinds(step)
    return update_to(mask, structure.spread(new, tuple(mask.shape)), is_rewound=is_rewound)


def drop_fraction_at(algorithm: SET | RigL, step: int) -> float:
    """Share of the kept units that the update of `step` drops before others grow.

    Raises:
        OpenwaferError: ``drop-fraction-range`` where it is not in [0, 1).
    """
    found = value_at(algorithm.drop_fraction, algorithm.target.updates, step)
    if not 0 <= found < 1:
        raise error(
            "drop-fraction-range",
            f"expected a drop fraction in [0, 1), found {found:g} at step {step} of "
            f"{algorithm.drop_fraction}",
            help="let updates stop before that step, or change the schedule",
        )
    return found


def _num_left(algorithm: SET | RigL, step: int, number: int) -> int:
    """Of so many units that were kept, those that the drop fraction leaves."""
    fraction = drop_fraction_at(algorithm, step)
    if algorithm.floors_left:
        return num_kept(fraction, number)
    return number - share_of(fraction, number)


def _undropped(
    algorithm: SET | RigL, step: int, sizes: Tensor, units: Tensor, num_units: int
) -> Tensor:
    """Units that stay: the largest of the whole weight, and no more than the target in a group."""
    num_left = _num_left(algorithm, step, int(units.count_nonzero()))
    left = largest(sizes.reshape(1, -1), num_left).reshape(units.shape)
    return _most(sizes, left, num_units)


def _most(sizes: Tensor, units: Tensor, num_units: int) -> Tensor:
    """The largest `num_units` of `units` in each group, or all where there are fewer."""
    counts = count(units)
    if int(counts.max()) <= num_units:
        return units
    return largest(sizes.masked_fill(~units, NOT_ELIGIBLE), counts.clamp(max=num_units))


def _grown(units: Tensor, num_units: int, scores: Tensor) -> Tensor:
    """`units` and, up to `num_units` in each group, those of the largest scores beside them."""
    growth = num_units - count(units)
    if not bool(growth.any()):
        return units
    return units | largest(scores.masked_fill(units, NOT_ELIGIBLE), growth)


def _at_random(seed: int, step: int, name: str, units: Tensor) -> Tensor:
    return random_scores((units.shape[0], units.shape[1]), seed, step, name).to(units.device)


def _required(candidates: GrowthCandidates | None, step: int, name: str) -> GrowthCandidates:
    if candidates is None:
        raise error(
            "gradient-missing",
            f"RigL grows {name} at step {step} by its gradient, and was given none",
            help="take RigL.candidates(step, gradient, mask) in each step of wants_gradient",
        )
    return candidates
