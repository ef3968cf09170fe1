"""Sparse weights as a method: their keys, which weights of a model they mean, and its masks."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import Diagnostic, Severity, counted, error
from openwafer.training.methods.averages import AverageKeys
from openwafer.training.methods.mask_updates import (
    MaskUpdates,
    Rewinding,
    held_gradients,
    rewind_step_of,
)
from openwafer.training.methods.seam import Method, ParameterRules, RunParts
from openwafer.training.methods.sparse_products import measured_products, products_to_pack
from openwafer.training.session.config_sections import Settings
from openwafer.training.session.optimizers import OF_MATRICES, tables_of
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sparsity.choice import WrittenProducts
from openwafer.training.sparsity.masks.one_shot import initial_mask
from openwafer.training.sparsity.masks.schedules import Target, require_capacity
from openwafer.training.sparsity.options import (
    SparseParameter,
    SparsityGroup,
    WrittenSparsity,
    resolve,
    sparsity_groups,
)
from openwafer.training.sparsity.packed_linear import (
    is_pattern,
    is_plain,
    pack_linears,
    packed_linears,
    rooms_of,
)
from openwafer.training.sparsity.products import Products
from openwafer.training.stream.plan.experts import routers
from openwafer.training.stream.plan.workload import Workload

CanBeSparse = Callable[[nn.Module], bool]


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
        # Steps of epochs may not be counted yet.
        if group.first_update is not None and 0 < num_steps < group.first_update
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


@dataclass(frozen=True)
class SparsityKeys(AverageKeys):
    """The keys of sparse weights.

    Attributes:
        sparsity: share of zeros in weights of linear modules but heads and routers, or groups of
            parameters with algorithms of their own; ``null`` is dense.
        sparse_products: auto, dense, sparse or measured: whether products with sparse weights skip
            zeros; dense ones have the bits of masked dense training. Or the fewest tokens with
            which they do, ``null`` for never, by globs of names, which is how a run keeps what it
            has measured.
    """

    sparsity: WrittenSparsity | None = None
    sparse_products: WrittenProducts = Products.AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        sparsity_groups(self.sparsity)
        if isinstance(self.sparse_products, dict):
            for name, tokens in self.sparse_products.items():
                if tokens is not None and tokens < 1:
                    raise InvalidFieldError(
                        "sparse_products", f"expected at least 1 token for {name}, found {tokens}"
                    )

    @property
    def sparse_groups(self) -> tuple[SparsityGroup, ...]:
        """The groups of sparse weights; none of a dense run."""
        return sparsity_groups(self.sparsity)

    def sparse_parameters(self, model: nn.Module) -> dict[str, SparseParameter]:
        """The weights that the run keeps sparse, of its model in the dense form or the sparse one.

        Raises:
            OpenwaferError: what a filter or a schedule asks for cannot be.
        """
        groups = self.sparse_groups
        if not groups:
            return {}
        dense = dense_by_default(model, is_plain)
        return resolve(groups, shapes_of(model), dense, self.steps, self.seed)

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found = super().methods()
        return found if self.sparsity is None else (*found, Sparsity(self))

    def measured(self, model: nn.Module) -> Self:
        """See the class that it extends."""
        config = super().measured(model)
        if self.sparse_products is not Products.MEASURED:
            return config
        return replace(config, sparse_products=measured_products(model))

    def begun_in(self, folder: RunFolder) -> Self:
        """See the class that it extends."""
        config = super().begun_in(folder)
        if self.sparse_products is Products.MEASURED and folder.config.is_file():
            kept = self.load(folder.config).sparse_products
            if isinstance(kept, dict):
                return replace(config, sparse_products=kept)
        return config

    def require_same(self, before: Self, model: nn.Module) -> None:
        """Refuse to go on with sparse weights that the store has no room for.

        Raises:
            OpenwaferError: see :func:`require_same_sparsity`.
        """
        super().require_same(before, model)
        written, wanted = (config.sparse_parameters(model) for config in (before, self))
        require_same_sparsity(model, written, wanted, self.steps)


@dataclass(frozen=True)
class Sparsity(Method):
    """Keeps weights sparse, and updates their masks between steps."""

    config: SparsityKeys

    key = "sparsity"
    not_in_stages = "masks are updated where all weights are"

    @property
    def one_store(self) -> str:
        """See the class that it extends."""
        rewinds = any(group.rewind_step is not None for group in self.config.sparse_groups)
        return "rewind_step goes back in one store alone" if rewinds else ""

    def shape_weights(self, model: nn.Module, *, has_weights: bool) -> None:
        """Give a dense model the run's sparse weights; without weights only room for them."""
        config = self.config
        chosen = config.sparse_parameters(model)

        def first_mask(name: str, weight: Tensor) -> Tensor:
            method, target = chosen[name].init_method, chosen[name].algorithm.target
            sparsity = target.sparsity_at(0)
            return initial_mask(method, weight, sparsity, name, config.seed, target.structure)

        capacities = {name: parameter.capacity for name, parameter in chosen.items()}
        products = products_to_pack(config, config.sparse_products)
        pack_linears(model, capacities, first_mask if has_weights else None, products)

    def parameter_rules(self, model: nn.Module, vocab_size: int) -> ParameterRules:
        """Sparse weights are matrices, kept as the values that are not zero."""
        return _RulesOfRows(packed_linears(model))

    def planned(self, workload: Workload) -> Workload:
        """Room for the gradients of whole weights, by which RigL grows.

        Raises:
            OpenwaferError: ``systems-rigl``.
        """
        config, model = self.config, workload.model
        held = held_gradients(model, config.sparse_parameters(model), config.steps)
        if held.by_weight and config.systems > 1:
            name = next(iter(held.by_weight))
            raise error(
                "systems-rigl",
                f"RigL grows {name!r} by the gradient of the whole weight, and each of "
                f"{config.systems} systems has that of its own micro-batches",
                help="choose the algorithm set, static or gmp, or train on one system",
            )
        return replace(workload, held_gradients=held)

    def remarks(self, model: nn.Module) -> tuple[Diagnostic | None, ...]:
        """Of matrices that stay dense unasked, and of masks that are never updated."""
        groups = self.config.sparse_groups
        return remark_on_default(model, groups), remark_on_updates(groups, self.config.steps)

    def begin(self, run: RunParts) -> MaskUpdates:
        """What changes masks; of initial weights, where a run begins with them, it keeps a picture.

        Raises:
            OpenwaferError: ``systems-rewind``, ``sparsity-rewind``.
        """
        parameters = self.config.sparse_parameters(run.model)
        step = rewind_step_of(parameters, self.config.ema)
        if step is not None and self.config.shares_store:
            raise error(
                "systems-rewind",
                f"all weights go back to those of step {step}, and store_systems: all has no way "
                "to tell the owners of records",
                help="set store_systems to first, or leave rewind_step out",
            )
        folder, is_new = run.folder.rewind, bool(run.weights)
        rewinding = None if step is None else Rewinding(step, folder, run.model, is_new=is_new)
        masks = MaskUpdates(run.model, parameters, rewinding)
        if run.weights:
            masks.draw_first(run.weights)
        return masks


class _RulesOfRows(ParameterRules):
    def __init__(self, in_rows: Collection[str]) -> None:
        self.in_rows = in_rows

    def scaled(self, name: str, settings: Settings) -> Settings:
        if name in self.in_rows and settings.optimizer in OF_MATRICES:
            raise error(
                "sparse-optimizer",
                f"{settings.optimizer} updates a weight as a matrix, and the sparse weight "
                f"{name!r} is kept as the values that are not zero, in a row",
                help="give sparse weights an optimizer that updates each value by itself: "
                f"optimizer.groups: [{{match: ['{name}'], name: adamw, learning_rate: ...}}]; or "
                "leave them dense",
            )
        return settings
