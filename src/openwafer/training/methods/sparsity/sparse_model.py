"""The sparse weights of a model: which they are, and the modules that hold them."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import nn

from openwafer.diagnostics import Diagnostic, Severity, counted, error
from openwafer.training.session.optimizers import tables_of
from openwafer.training.sparsity.masks.schedules import Target, require_capacity
from openwafer.training.sparsity.options import SparseParameter, SparsityGroup
from openwafer.training.sparsity.packed_linear import is_pattern, is_plain, rooms_of
from openwafer.training.stream.plan.experts import routers


def remark_on_default(model: nn.Module, groups: Sequence[SparsityGroup]) -> Diagnostic | None:
    """A warning of matrices that stay dense though no filter of the run says so."""
    if all(group.filters for group in groups):
        return None
    sizes = {name: math.prod(shape) for name, shape in shapes_of(model).items()}
    return remark_on_dense(model, is_plain, sizes)


def remark_on_updates(groups: Sequence[SparsityGroup], num_steps: int) -> Diagnostic | None:
    """A warning of masks whose first update lies beyond the run."""
    late = [
        f"{group.algorithm} updates first behind step {group.first_update}, in group {index + 1}"
        for index, group in enumerate(groups)
        if group.first_update is not None and group.first_update > num_steps
    ]
    if not late:
        return None
    return Diagnostic(
        Severity.WARNING,
        "sparsity-updates",
        f"masks of {counted(len(late), 'group')} are never updated in a run of "
        f"{counted(num_steps, 'step')}",
        notes=tuple(late),
        help="lower freq or start of its update, or choose static, which keeps its masks",
    )


def require_same_sparsity(
    model: nn.Module,
    written: Mapping[str, SparseParameter],
    wanted: Mapping[str, SparseParameter],
    num_steps: int,
) -> None:
    """Raise where a run is to go on with sparse weights that its store has no room for.

    Raises:
        OpenwaferError: ``sparsity-changed`` for weights that were dense or are to be, and for room
            that is not filled; ``sparsity-capacity`` for weights that are to keep more;
            ``sparsity-structure``, for masks are not chosen anew, and static ones would never have
            it.
    """
    shapes = shapes_of(model)
    for name in {**written, **wanted}:
        old, new = written.get(name), wanted.get(name)
        if old is not None and new is not None:
            _require_same_structure(name, old.algorithm.target, new.algorithm.target)
            target, shape = new.algorithm.target, shapes[name]
            require_capacity(target, name, shape, num_steps, old.capacity)
        if old is None or new is None or old.capacity != new.capacity:
            of = f"{math.prod(shapes[name])} weights"
            raise error(
                "sparsity-changed",
                f"{name!r} {_use(old, of)} as the run was begun, and {_use(new, of)} as it is to "
                "go on",
                help="leave the sparsity of a run as it is, or export it and begin a new run",
            )


def _require_same_structure(name: str, found: Target, wanted: Target) -> None:
    if found.structure != wanted.structure:
        raise error(
            "sparsity-structure",
            f"the masks of {name!r} are {found.structure}, and the run is to go on with "
            f"{wanted.structure}",
            help="leave the structure of a run as it is, or export it and begin a new run",
        )


def _use(parameter: SparseParameter | None, of: str) -> str:
    return "is dense" if parameter is None else f"keeps at most {parameter.capacity} of {of}"


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of the parameters of a model's dense form."""
    rooms = rooms_of(model)
    return {
        name: rooms[name].shape if name in rooms else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if not is_pattern(name, rooms)
    }


CanBeSparse = Callable[[nn.Module], bool]


def dense_by_default(model: nn.Module, can_be_sparse: CanBeSparse) -> set[str]:
    """Names of embeddings, heads and routers, and of what no module makes sparse."""
    return {*_meant_dense(model), *(name for name, _ in _left(model, can_be_sparse))}


def remark_on_dense(
    model: nn.Module, can_be_sparse: CanBeSparse, num_elements: Mapping[str, int]
) -> Diagnostic | None:
    """A warning that names matrices which a sparsity without filter leaves dense, if it does.

    Args:
        model: in its dense form or the sparse one.
        can_be_sparse: whether the weight of a module can.
        num_elements: of all parameters of the dense form, by name.
    """
    meant = _meant_dense(model)
    left = {name: owner for name, owner in _left(model, can_be_sparse) if name not in meant}
    if not left:
        return None
    kinds = {re.sub(r"\b\d+\b", "*", name): owner for name, owner in left.items()}
    share = sum(num_elements[name] for name in left) / sum(num_elements.values())
    return Diagnostic(
        Severity.WARNING,
        "sparsity-dense",
        f"{counted(len(left), 'parameter')} with {share:.1%} of the model's weights stay "
        "dense, as only the weights of linear modules can be sparse",
        notes=tuple(f"{name}, of a {owner}" for name, owner in kinds.items()),
        help="experts that a module holds in one weight are among these; to leave them out in so "
        "many words, name the weights that shall be sparse in a filter",
    )


def _meant_dense(model: nn.Module) -> set[str]:
    tables = tables_of(model)
    names = {name for name, parameter in model.named_parameters() if id(parameter) in tables}
    return names | routers(model)


def _left(model: nn.Module, can_be_sparse: CanBeSparse) -> Iterator[tuple[str, str]]:
    """Name of each matrix that cannot be sparse, and the class of its module."""
    for name, parameter in model.named_parameters():
        path, _, attribute = name.rpartition(".")
        owner = model.get_submodule(path)
        if parameter.ndim >= 2 and not (attribute == "weight" and can_be_sparse(owner)):
            yield name, type(owner).__name__
