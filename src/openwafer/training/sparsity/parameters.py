"""From written groups to the sparse parameters of a model: the first filter that matches wins."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.training.sparsity.masks.algorithms import SET, Algorithm, RigL, drop_fraction_at
from openwafer.training.sparsity.masks.initial_masks import InitMethod
from openwafer.training.sparsity.masks.structures import Shape, require_fit
from openwafer.training.sparsity.options import SparsityGroup

MAX_LISTED_NAMES = 1000


@dataclass(frozen=True)
class SparseParameter:
    """How one parameter is sparse.

    Attributes:
        group: number of its group, from 0.
        capacity: most weights that are kept at any step of the run.
    """

    group: int
    algorithm: Algorithm
    init_method: InitMethod
    capacity: int


def choose_groups(
    groups: tuple[SparsityGroup, ...], shapes: Mapping[str, Shape], dense: Collection[str]
) -> dict[str, int]:
    """For each sparse parameter the number of its group, from 0; in the order of `shapes`.

    Vectors (norms, biases) always stay dense. A group without filter takes all matrices but those
    in `dense`; a pattern may name these, too.

    Args:
        shapes: of all parameters by name.
        dense: names of what the default filter leaves dense.

    Raises:
        OpenwaferError: ``sparsity-filter`` where a pattern, or a group, takes no parameter.
    """
    chosen: dict[str, int] = {}
    for index, group in enumerate(groups):
        before = len(chosen)
        for pattern in group.filters:
            _require_match(group, pattern, shapes, index)
        for name, shape in shapes.items():
            if name not in chosen and len(shape) >= 2 and _takes(group, name, dense):
                chosen[name] = index
        if len(chosen) == before:
            raise error(
                "sparsity-filter",
                f"{_place(index)} has no parameter left: earlier groups take all that it matches"
                if group.filters
                else f"{_place(index)} has no filter, and no weight of a linear module is left "
                "beside embeddings, output heads and routers",
                help="write narrower filters in earlier groups, or leave this group out",
            )
    return {name: chosen[name] for name in shapes if name in chosen}


def resolve(
    groups: tuple[SparsityGroup, ...],
    shapes: Mapping[str, Shape],
    dense: Collection[str],
    num_steps: int,
    seed: int,
) -> dict[str, SparseParameter]:
    """The sparse parameters of a model, each with all that is decided before training.

    Args:
        shapes: of all parameters by name, in the model's order.
        dense: names of what the default filter leaves dense, such as embeddings.
        num_steps: training steps of the run.
        seed: of the run.

    Raises:
        OpenwaferError: ``sparsity-filter``, ``sparsity-range``, ``sparsity-empty``,
            ``drop-fraction-range``, ``mask-shape``, ``mask-pattern``.
    """
    algorithms = [group.build(seed) for group in groups]
    for index, algorithm in enumerate(algorithms):
        _check_schedules(algorithm, index, num_steps)
    return {
        name: SparseParameter(
            index,
            algorithms[index],
            groups[index].init_method,
            _capacity(algorithms[index], name, shapes[name], num_steps),
        )
        for name, index in choose_groups(groups, shapes, dense).items()
    }


def _takes(group: SparsityGroup, name: str, dense: Collection[str]) -> bool:
    if not group.filters:
        return name not in dense
    return any(group.matches(pattern, name) for pattern in group.filters)


def _require_match(
    group: SparsityGroup, pattern: str, shapes: Mapping[str, Shape], index: int
) -> None:
    matched = [name for name in shapes if group.matches(pattern, name)]
    if any(len(shapes[name]) >= 2 for name in matched):
        return
    found = f"only {counted(len(matched), 'vector')}" if matched else "none"
    raise error(
        "sparsity-filter",
        f"the pattern '{pattern}' of {_place(index)} matches {found} of "
        f"{counted(len(shapes), 'parameter')}",
        notes=("vectors, such as norms and biases, stay dense",) if matched else (),
        help=did_you_mean(pattern, [n for n in shapes if len(shapes[n]) >= 2][:MAX_LISTED_NAMES]),
    )


def _capacity(algorithm: Algorithm, name: str, shape: Shape, num_steps: int) -> int:
    target = algorithm.target
    require_fit(target.structure, shape, name)
    target.require_pattern(name, shape, num_steps)
    changes = target.changes(shape, num_steps)
    for step, number in changes:
        if number == 0:
            raise error(
                "sparsity-empty",
                f"{name} of shape {list(shape)} would keep none of its {math.prod(shape)} weights "
                f"at sparsity {target.sparsity_at(step):g} from step {step} on",
                help="choose a lower sparsity, or leave this parameter out by its filter",
            )
    return max(number for _, number in changes)


def _check_schedules(algorithm: Algorithm, index: int, num_steps: int) -> None:
    try:
        algorithm.target.changes((1, 1), num_steps)
        if isinstance(algorithm, SET | RigL):
            for step in algorithm.target.updates.until(num_steps):
                drop_fraction_at(algorithm, step)
    except OpenwaferError as found:
        placed = (replace(each, notes=(*each.notes, _place(index))) for each in found.diagnostics)
        raise OpenwaferError(*placed) from found


def _place(index: int) -> str:
    return f"group {index + 1} of sparsity"
