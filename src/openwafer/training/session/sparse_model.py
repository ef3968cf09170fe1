"""The sparse weights of a run's model: which they are, and the modules that hold them."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.session.config import RunConfig
from openwafer.training.session.parameter_groups import tables_of
from openwafer.training.sparsity.masks import initial_mask
from openwafer.training.sparsity.options import sparsity_groups
from openwafer.training.sparsity.packed_linear import pack_linears
from openwafer.training.sparsity.parameters import SparseParameter, resolve
from openwafer.training.sparsity.rooms import is_pattern, pattern_name, rooms_of


def sparse_parameters(model: nn.Module, config: RunConfig) -> dict[str, SparseParameter]:
    """The weights that the run keeps sparse, of its model in the dense form or the sparse one.

    Raises:
        OpenwaferError: what a filter or a schedule asks for cannot be.
    """
    if config.sparsity is None:
        return {}
    rooms = rooms_of(model)
    shapes = {
        name: rooms[name].shape if name in rooms else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if not is_pattern(name, rooms)
    }
    tables = tables_of(model)
    names = {name for name, parameter in model.named_parameters() if id(parameter) in tables}
    return resolve(sparsity_groups(config.sparsity), shapes, names, config.steps, config.seed)


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
    pack_linears(model, capacities, first, config.sparse_products)


def require_same_structures(model: nn.Module, before: RunConfig, now: RunConfig) -> None:
    """Raise ``sparsity-structure`` where a run goes on with masks of another structure.

    Masks are not chosen anew, and those of a static weight would never have it.
    """
    written = sparse_parameters(model, before)
    for name, parameter in sparse_parameters(model, now).items():
        wanted = parameter.algorithm.target.structure
        found = written[name].algorithm.target.structure if name in written else wanted
        if found != wanted:
            raise error(
                "sparsity-structure",
                f"the masks of {name!r} are {found}, and the run is to go on with {wanted}",
                help="leave the structure of a run as it is, or export it and begin a new run",
            )


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
        pattern = room.pattern(self._weights[pattern_name(name)])
        return pattern.dense(values[: pattern.num_kept])

    def hollow(self, name: str) -> torch.Tensor:
        """A tensor of the dtype and shape of a weight, without values."""
        parameter, room = self._parameters[name], self._rooms.get(name)
        return parameter if room is None else parameter.new_empty(room.shape, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
