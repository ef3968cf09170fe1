"""The sparse weights of a run's model: which they are, and the modules that hold them."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from openwafer.diagnostics import Diagnostic, Severity, counted, error
from openwafer.training.session.config import RunConfig
from openwafer.training.session.default_filter import dense_by_default, remark_on_dense
from openwafer.training.session.sparse_products import products_to_pack
from openwafer.training.sparsity.masks import Target, initial_mask, require_capacity
from openwafer.training.sparsity.options import sparsity_groups
from openwafer.training.sparsity.packed_linear import is_plain, pack_linears
from openwafer.training.sparsity.parameters import SparseParameter, resolve
from openwafer.training.sparsity.rooms import is_pattern, pattern_name, rooms_of


def sparse_parameters(model: nn.Module, config: RunConfig) -> dict[str, SparseParameter]:
    """The weights that the run keeps sparse, of its model in the dense form or the sparse one.

    Raises:
        OpenwaferError: what a filter or a schedule asks for cannot be.
    """
    if config.sparsity is None:
        return {}
    groups = sparsity_groups(config.sparsity)
    dense = dense_by_default(model, is_plain)
    return resolve(groups, _shapes_of(model), dense, config.steps, config.seed)


def remark_on_default(model: nn.Module, config: RunConfig) -> Diagnostic | None:
    """A warning of matrices that stay dense though no filter of the run says so."""
    groups = () if config.sparsity is None else sparsity_groups(config.sparsity)
    if all(group.filters for group in groups):
        return None
    sizes = {name: math.prod(shape) for name, shape in _shapes_of(model).items()}
    return remark_on_dense(model, is_plain, sizes)


def remark_on_updates(config: RunConfig) -> Diagnostic | None:
    """A warning of masks whose first update lies beyond the run."""
    groups = () if config.sparsity is None else sparsity_groups(config.sparsity)
    late = [
        f"{group.algorithm} updates first behind step {group.first_update}, in group {index + 1}"
        for index, group in enumerate(groups)
        if group.first_update is not None and group.first_update > config.steps
    ]
    if not late:
        return None
    return Diagnostic(
        Severity.WARNING,
        "sparsity-updates",
        f"masks of {counted(len(late), 'group')} are never updated in a run of "
        f"{counted(config.steps, 'step')}",
        notes=tuple(late),
        help="lower freq or start of its update, or choose static, which keeps its masks",
    )


def make_sparse(model: nn.Module, config: RunConfig, *, has_weights: bool) -> None:
    """Give a dense model the run's sparse weights; without weights only room for them."""
    chosen = sparse_parameters(model, config)

    def first_mask(name: str, weight: torch.Tensor) -> torch.Tensor:
        found = chosen[name]
        target = found.algorithm.target
        sparsity = target.sparsity_at(0)
        return initial_mask(
            found.init_method, weight, sparsity, name, config.seed, target.structure
        )

    capacities = {name: parameter.capacity for name, parameter in chosen.items()}
    first = first_mask if has_weights else None
    pack_linears(model, capacities, first, products_to_pack(config))


def require_same_sparsity(model: nn.Module, before: RunConfig, now: RunConfig) -> None:
    """Raise where a run is to go on with sparse weights that its store has no room for.

    Raises:
        OpenwaferError: ``sparsity-changed`` for weights that were dense or are to be, and for room
            that is not filled; ``sparsity-capacity`` for weights that are to keep more;
            ``sparsity-structure``, for masks are not chosen anew, and static ones would never have
            it.
    """
    written, wanted = sparse_parameters(model, before), sparse_parameters(model, now)
    shapes = _shapes_of(model)
    for name in written | wanted:
        old, new = written.get(name), wanted.get(name)
        if old is not None and new is not None:
            _require_same_structure(name, old.algorithm.target, new.algorithm.target)
            target, shape = new.algorithm.target, shapes[name]
            require_capacity(target, name, shape, now.steps, old.capacity)
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


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of the parameters of a model's dense form."""
    rooms = rooms_of(model)
    return {
        name: rooms[name].shape if name in rooms else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if not is_pattern(name, rooms)
    }


class DenseWeights(Mapping[str, torch.Tensor]):
    """The weights of a model by the names that they have in its dense form.

    Args:
        weights: as the store has them, read when asked for.
        model: whose modules say which are sparse.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], model: nn.Module) -> None:
        self._weights = weights
        self._rooms = rooms_of(model)
        self._parameters = dict(model.named_parameters())
        self._names = [name for name in weights if not is_pattern(name, self._rooms)]

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self._weights[name]
        room = self._rooms.get(name)
        if room is None:
            return values
        return room.dense(values, self._weights[pattern_name(name)])

    def hollow(self, name: str) -> torch.Tensor:
        """A tensor of the dtype and shape of a weight, without values."""
        parameter, room = self._parameters[name], self._rooms.get(name)
        return parameter if room is None else parameter.new_empty(room.shape, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
