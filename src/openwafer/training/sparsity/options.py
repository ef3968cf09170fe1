"""How a user writes sparsity, and the sparse parameters that this means for a model.

It is one number, one group of parameters, or a list of groups: the first filter that matches wins.
The keys are those of ``cerebras.pytorch.sparse``; `param_name_patterns` is the filter of its first
releases, whose three keys (`sparsity`, `init_method`, `param_name_patterns`) mean what they meant.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import ClassVar

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.training.sparsity.masks.algorithms import (
    GMP,
    IMP,
    SET,
    Algorithm,
    RigL,
    Static,
    drop_fraction_at,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod
from openwafer.training.sparsity.masks.schedules import (
    Constant,
    Cycling,
    Rounds,
    Schedule,
    Target,
    Updates,
    WrittenSchedule,
)
from openwafer.training.sparsity.masks.structures import (
    Blocks,
    NOfM,
    Shape,
    Structure,
    Unstructured,
    require_fit,
)

DROP_FRACTION = 0.3
PRUNE_FRACTION = 0.2
_STRUCTURE = re.compile(r"(\d+)([:x])(\d+)")


class AlgorithmName(StrEnum):
    """An algorithm as it is written."""

    STATIC = "static"
    GMP = "gmp"
    SET = "set"
    RIGL = "rigl"
    IMP = "imp"


DROPPING = (AlgorithmName.SET, AlgorithmName.RIGL)


@dataclass(frozen=True)
class SparsityGroup:
    """Parameters that are sparse in the same way.

    Attributes:
        sparsity: share of zeros, in [0, 1); a schedule of it; or a list, one value an update. With
            an n:m structure it may be left out. Of `imp` it is the last one.
        algorithm: static, gmp, set, rigl or imp.
        init_method: random, topk (the largest magnitudes) or checkerboard.
        param_filter: globs of whole parameter names, such as ``*.mlp.*``.
        param_name_patterns: regular expressions that are found anywhere in a name, instead. With
            neither, all weights of linear modules are sparse but for output heads and routers.
        structure: 2:4 keeps two of every four weights in a row; 4x4 keeps whole blocks.
        update: when masks are updated: every `freq` steps, or at a list of `steps`.
        drop_fraction: of set and rigl: the share of kept weights that an update drops; a number, a
            schedule, or a list; left out 0.3.
        prune_fraction: of imp: the share of kept weights that a round prunes; left out 0.2.
        rewind_step: of imp: to which step's weights a round goes back; ``null`` goes on. It is
            before the first round.
    """

    KEYS_ELSEWHERE: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "type": "write algorithm: ..., one of " + ", ".join(AlgorithmName),
            "sparsity_schedule": "write sparsity: ..., which takes a schedule, too",
            "sparsity_level": "write sparsity: ...",
            "drop_fraction_schedule": "write drop_fraction: ..., which takes a schedule, too",
            "pruning_schedule": "write sparsity: ..., which takes a schedule, too",
        }
    )

    sparsity: float | WrittenSchedule | tuple[float, ...] | None = None
    algorithm: AlgorithmName = AlgorithmName.STATIC
    init_method: InitMethod = InitMethod.RANDOM
    param_filter: str | tuple[str, ...] | None = None
    param_name_patterns: str | tuple[str, ...] | Mapping[str, object] | None = None
    structure: str | None = None
    update: Updates | None = None
    drop_fraction: float | WrittenSchedule | tuple[float, ...] | None = None
    prune_fraction: float | None = None
    rewind_step: int | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        self._refuse_settings_by_pattern()
        self._check_sparsity()
        self._check_filters()
        self._check_update()
        self._check_shares()

    @property
    def masks(self) -> Structure:
        """What masks keep or drop together."""
        return _structure(self.structure)

    @property
    def filters(self) -> tuple[str, ...]:
        """The patterns as written; none for the default."""
        return _listed(self.param_filter) + _listed(self.param_name_patterns)

    @property
    def first_update(self) -> int | None:
        """The step behind which masks are updated first, whatever the length of the run."""
        return None if self.update is None else next(self.update.until(_FAR), None)

    def matches(self, pattern: str, name: str) -> bool:
        """Whether `pattern`, one of `filters`, picks the parameter `name`."""
        if self.param_filter is not None:
            return fnmatchcase(name, pattern)
        return re.search(pattern, name) is not None

    def build(self, seed: int) -> Algorithm:
        """The algorithm of this group; random choices are drawn from `seed`."""
        target = self._target()
        match self.algorithm:
            case AlgorithmName.STATIC:
                return Static(target)
            case AlgorithmName.GMP:
                return GMP(target, seed)
            case AlgorithmName.SET:
                return SET(target, self._drop_fraction(), seed)
            case AlgorithmName.RIGL:
                return RigL(target, self._drop_fraction())
            case AlgorithmName.IMP:
                return IMP(target, self.rewind_step)

    def _target(self) -> Target:
        sparsity = self._sparsity()
        if self.algorithm is AlgorithmName.IMP:
            assert isinstance(sparsity, Constant)
            sparsity = Rounds(sparsity.value, self.prune_fraction or PRUNE_FRACTION)
        if self.update is None:
            return Target(sparsity, structure=self.masks)
        return Target(sparsity, self.update, self.masks)

    def _sparsity(self) -> Schedule:
        structure = self.masks
        if self.sparsity is None and isinstance(structure, NOfM):
            return Constant(1 - structure.n / structure.m)
        if self.sparsity is None:
            raise InvalidFieldError(
                "sparsity", "expected a sparsity, found nothing", help="write sparsity: 0.75"
            )
        return _schedule(self.sparsity)

    def _drop_fraction(self) -> Schedule:
        return _schedule(DROP_FRACTION if self.drop_fraction is None else self.drop_fraction)

    def _check_sparsity(self) -> None:
        for value in _known_values(self.sparsity):
            if not 0 <= value < 1:
                raise InvalidFieldError(
                    "sparsity",
                    f"expected in [0, 1), found {value:g}",
                    help="0.9 keeps a tenth of the weights; 0 keeps all",
                )
        schedule = self._sparsity()
        has_one = self.algorithm in (AlgorithmName.STATIC, AlgorithmName.IMP)
        if has_one and not isinstance(schedule, Constant):
            raise InvalidFieldError(
                "sparsity",
                f"{self.algorithm} has one sparsity, found the schedule {schedule}",
                help="write a number, or choose gmp, set or rigl",
            )
        if self.algorithm is AlgorithmName.GMP and isinstance(schedule, Constant):
            raise InvalidFieldError(
                "sparsity",
                f"gmp prunes by a schedule, found the one sparsity {schedule.value:g}",
                help="choose static, or write sparsity: {type: polynomial, final: 0.9, end: 1000}",
            )

    def _refuse_settings_by_pattern(self) -> None:
        if isinstance(self.param_name_patterns, Mapping):
            pattern, *_ = *self.param_name_patterns, "mlp"
            raise InvalidFieldError(
                "param_name_patterns",
                "expected patterns, found a mapping from patterns to their settings",
                help="write a list of groups, each with its pattern and all its settings: "
                f"sparsity: [{{param_name_patterns: '{pattern}', sparsity: 0.75}}, ...]",
            )

    def _check_filters(self) -> None:
        if self.param_filter is not None and self.param_name_patterns is not None:
            raise InvalidFieldError(
                "param_name_patterns",
                "param_filter and param_name_patterns stand in one group",
                help="write either: globs of whole names, or regular expressions",
            )
        if self.filters == () and (self.param_filter, self.param_name_patterns) != (None, None):
            field = "param_name_patterns" if self.param_filter is None else "param_filter"
            raise InvalidFieldError(
                field, "expected a pattern, found an empty list", help="leave the key out"
            )
        for pattern in _listed(self.param_name_patterns):
            try:
                re.compile(pattern)
            except re.error as cause:
                raise InvalidFieldError(
                    "param_name_patterns",
                    f"'{pattern}' is no regular expression: {cause}",
                    help="write globs, such as *.mlp.*, in param_filter",
                ) from cause

    def _check_update(self) -> None:
        is_static = self.algorithm is AlgorithmName.STATIC
        if is_static and self.update is not None:
            raise InvalidFieldError(
                "update", "static never updates its mask", help="choose gmp, set, rigl or imp"
            )
        if not is_static and self.first_update is None:
            raise InvalidFieldError(
                "update",
                f"{self.algorithm} updates its masks, and no step for that is written",
                help="write update: {freq: 100}",
            )

    def _check_shares(self) -> None:
        self._refuse_elsewhere("drop_fraction", DROPPING)
        self._refuse_elsewhere("prune_fraction", (AlgorithmName.IMP,))
        self._refuse_elsewhere("rewind_step", (AlgorithmName.IMP,))
        # A schedule may come down to 0; the number that one begins with may not be it.
        for value in _known_values(self.drop_fraction):
            _require_inside("drop_fraction", value)
        if self.prune_fraction is not None:
            _require_inside("prune_fraction", self.prune_fraction)
        self._check_rewind_step()

    def _check_rewind_step(self) -> None:
        first = self.first_update
        if self.rewind_step is None or first is None:
            return
        if not 0 <= self.rewind_step < first:
            raise InvalidFieldError(
                "rewind_step",
                f"expected from 0 to before the first update at {first}, found {self.rewind_step}",
                help="0 goes back to the initial weights",
            )

    def _refuse_elsewhere(self, field: str, algorithms: tuple[AlgorithmName, ...]) -> None:
        if getattr(self, field) is not None and self.algorithm not in algorithms:
            raise InvalidFieldError(
                field,
                f"{self.algorithm} has no {field}",
                help=f"leave it out, or choose {' or '.join(algorithms)}",
            )


WrittenSparsity = float | SparsityGroup | tuple[SparsityGroup, ...]
"""What the key ``sparsity`` holds: its type in a config."""

_FAR = 2**62


def sparsity_groups(written: WrittenSparsity | None) -> tuple[SparsityGroup, ...]:
    """The groups that `written` means, in order; none where nothing is written.

    Raises:
        InvalidFieldError: for a number that is no sparsity, an empty list, or a group that can
            never match, since an earlier one takes all.
    """
    if written is None:
        return ()
    if isinstance(written, int | float):
        return (SparsityGroup(float(written)),)
    groups = (written,) if isinstance(written, SparsityGroup) else written
    if not groups:
        raise InvalidFieldError(
            "sparsity", "expected a group, found an empty list", help="leave the key out"
        )
    for index, group in enumerate(groups[:-1]):
        if not group.filters:
            raise InvalidFieldError(
                "sparsity",
                f"group {index + 1} of {len(groups)} has no filter, so later ones match nothing",
                help="write it last",
            )
    return groups


def _structure(written: str | None) -> Structure:
    if written is None:
        return Unstructured()
    found = _STRUCTURE.fullmatch(written)
    if found is None:
        raise InvalidFieldError(
            "structure",
            f"expected a form such as 2:4 or 4x4, found '{written}'",
            help="2:4 keeps two of every four weights in a row, 4x4 keeps whole blocks",
        )
    first, second = int(found[1]), int(found[3])
    if found[2] == ":" and not 0 < first <= second:
        raise InvalidFieldError(
            "structure",
            f"'{written}' keeps {first} of every {second} weights",
            help=f"write {second}:{first}" if 0 < second < first else "write 2:4",
        )
    if found[2] == "x" and 0 in (first, second):
        raise InvalidFieldError(
            "structure", f"'{written}' is a block without weights", help="write 4x4"
        )
    return NOfM(first, second) if found[2] == ":" else Blocks(first, second)


def _schedule(written: float | WrittenSchedule | tuple[float, ...]) -> Schedule:
    if isinstance(written, tuple):
        return Cycling(written)
    return Constant(written) if isinstance(written, int | float) else written


def _known_values(
    written: float | WrittenSchedule | tuple[float, ...] | None,
) -> tuple[float, ...]:
    """Values that need no number of steps: all of some schedules, the first of the others."""
    match written:
        case None:
            return ()
        case tuple():
            return written
        case int() | float():
            return (written,)
        case Cycling(values):
            return values
        case _:
            return (written(0, 0),)


def _require_inside(field: str, value: float) -> None:
    if not (0 < value < 1 and math.isfinite(value)):
        raise InvalidFieldError(
            field, f"expected in (0, 1), found {value:g}", help=f"write {field}: {DROP_FRACTION}"
        )


def _listed(patterns: str | Sequence[str] | Mapping[str, object] | None) -> tuple[str, ...]:
    if patterns is None:
        return ()
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


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
